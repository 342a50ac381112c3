// A large kernel runs on all cores that this rank has to itself, a share of its range on each.
#include "common/cpu/cores.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace workshop::cpu {

int ranks_of_node() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::max(1, std::atoi(value));
  }
  return 1;
}

namespace {

// The cores of this node, divided among its ranks.
int cores_of_this_rank() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / ranks_of_node(), 1, 16);
}

// Threads that wait for a kernel and run their share of it. Like the streams' workers they never end.
class Team {
 public:
  Team() : size_(cores_of_this_rank()) {
    for (int index = 1; index < size_; ++index) std::thread([this, index] { help(index); }).detach();
  }

  void run(void (*kernel)(const void*), const void* task) {
    // Where the kernel of another stream has the team, this one does without.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (size_ == 1 || !lock.owns_lock()) return kernel(task);
    kernel_ = kernel;
    task_ = task;
    busy_ = size_ - 1;
    ++calls_;
    calls_.notify_all();
    run_share(0);
    for (int busy = busy_; busy > 0; busy = busy_) busy_.wait(busy);
  }

 private:
  void help(int index) {
    for (int seen = 0;;) {
      calls_.wait(seen);
      seen = calls_;
      run_share(index);
      if (--busy_ == 0) busy_.notify_one();
    }
  }

  void run_share(int index) {
    share = {index, size_};
    kernel_(task_);
    share = {};
  }

  const int size_;
  std::mutex mutex_;
  void (*kernel_)(const void*) = nullptr;
  const void* task_ = nullptr;
  std::atomic<int> calls_ = 0;
  std::atomic<int> busy_ = 0;  // helpers that have not finished this call
};

}  // namespace

void run_shared(void (*kernel)(const void*), const void* task) {
  static Team& team = *new Team;
  team.run(kernel, task);
}

}  // namespace workshop::cpu
