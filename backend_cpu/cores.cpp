// SPDX-License-Identifier: Apache-2.0
// Runs a large kernel or product on all cores that this rank has to itself, a share of its range on each.
#include "backend_cpu/cores.h"

#include <cuda_runtime.h>
#include <sched.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <workshop_cpu.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace workshop::cpu {
namespace {

int positive(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  const int number = value == nullptr ? 0 : std::atoi(value);
  return number > 0 ? number : otherwise;
}

}  // namespace

int ranks_of_node() { return positive("OMPI_COMM_WORLD_LOCAL_SIZE", positive("LOCAL_WORLD_SIZE", 1)); }

namespace {

int count_cores() {
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(std::min(cores, positive("SLURM_CPUS_PER_TASK", cores / ranks_of_node())), 1, 16);
}

// Waits while holds(value). Yields for as long as a short kernel takes, and only then sleeps, because waking a thread
// takes about 50 us, as long as its share of a kernel.
template <typename Predicate>
void wait_while(const std::atomic<int>& value, Predicate holds) {
  using std::chrono::steady_clock;
  constexpr std::chrono::microseconds kAwake(100);
  for (const auto end = steady_clock::now() + kAwake; steady_clock::now() < end; std::this_thread::yield()) {
    if (!holds(value)) return;
  }
  for (int now = value; holds(now); now = value) value.wait(now);
}

// Threads that wait for a kernel and run their share of it. Like the streams' workers, they never end.
class Team {
 public:
  Team() : size_(cores_of_rank()) {
    for (int index = 1; index < size_; ++index) std::thread([this, index] { help(index); }).detach();
  }

  void run(void (*kernel)(const void*), const void* task) {
    // If the kernel of a different stream uses the team, this thread computes all shares itself.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (size_ == 1 || !lock.owns_lock()) {
      for (int index = 0; index < size_; ++index) run_share(index, kernel, task);
      return;
    }
    kernel_ = kernel;
    task_ = task;
    busy_ = size_ - 1;
    ++calls_;
    calls_.notify_all();
    run_share(0, kernel, task);
    wait_while(busy_, [](int busy) { return busy > 0; });
  }

 private:
  void help(int index) {
    flush_denormals();
    for (int seen = 0;; ++seen) {
      wait_while(calls_, [seen](int calls) { return calls == seen; });
      run_share(index, kernel_, task_);
      if (--busy_ == 0) busy_.notify_one();
    }
  }

  void run_share(int index, void (*kernel)(const void*), const void* task) {
    share = {index, size_};
    kernel(task);
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

int cores_of_rank() {
  static const int cores = count_cores();
  return cores;
}

void flush_denormals() {
#ifdef __SSE__
  constexpr unsigned kFlushResults = 0x8000, kReadAsZero = 0x0040;  // MXCSR's FTZ and DAZ
  _mm_setcsr(_mm_getcsr() | kFlushResults | kReadAsZero);
#elif defined(__aarch64__)
  constexpr std::uint64_t kFlush = 1 << 24;  // FPCR's FZ: both
  std::uint64_t fpcr = 0;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" : : "r"(fpcr | kFlush));
#endif
}

void run_shared(void (*kernel)(const void*), const void* task) {
  static Team& team = *new Team;
  team.run(kernel, task);
}

}  // namespace workshop::cpu
