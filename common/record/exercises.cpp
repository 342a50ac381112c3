// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/files.h"
#include "common/record.h"
#include "common/record/recorder.h"
#include "common/run/roll_call.h"

namespace workshop {
namespace {

constexpr std::size_t kArenaBytes = 8 << 20;  // for probes: more than the tests and ./workshop check need

// A probe whose copy may still be on its way.
struct PendingProbe {
  Json line;
  float* values;  // in the arena
  std::size_t count;
  Event copied;
};

// Pinned memory for probes, so that their copies are asynchronous. Taken before the steps, because to allocate may wait
// for the device; never freed, because that may wait for a kernel which never ends.
class Arena {
 public:
  void grow(std::size_t bytes) {
    CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&next_), bytes));
    left_ = bytes;
  }
  float* take(std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    if (bytes > left_) grow(std::max(bytes, kArenaBytes));
    left_ -= bytes;
    return std::exchange(next_, next_ + count);
  }

 private:
  float* next_ = nullptr;
  std::size_t left_ = 0;
};

// In a kernel that is not filled in yet, a thread of the cpu backend's takes what has been probed so far.
struct Probes {
  std::timed_mutex mutex;
  Arena arena;
  std::vector<PendingProbe> pending;
};
// Never destroyed: its events would be when CUDA is gone.
Probes& probes() {
  static Probes& probes = *new Probes;
  return probes;
}

// The comment of a TODO in the source file above `line`, from "TODO" on.
std::string todo_text(const char* file, int line) {
  std::ifstream source(file);
  std::string text, read;
  for (int i = 1; i < line && std::getline(source, read); ++i) {
    const std::size_t start = read.find_first_not_of(" \t");
    const bool comment = start != std::string::npos && read.compare(start, 2, "//") == 0;
    if (!comment || read.compare(start, 7, "// TODO") == 0) text.clear();
    if (comment) text += "  " + read.substr(std::min(start + 3, read.size())) + "\n";
  }
  return text;
}

// The probe's line but for its values; nullopt where nothing is to be recorded.
std::optional<Json> begin_probe(const char* todo, const std::string& name) {
  static int sequence = 0;
  static const char* asked = std::getenv("WORKSHOP_PROBES");  // 0: for runs of which only the results are compared
  if (asked != nullptr && std::string(asked) == "0") return std::nullopt;
  if (recorder().record_path.empty() || recorder().step >= kProbedSteps) return std::nullopt;
  return Json{{"type", "probe"}, {"rank", process_ranks().rank}, {"id", todo},
              {"name", name},    {"step", recorder().step},      {"sequence", sequence++}};
}

// Never destroyed: the watchdog may look at it at any time.
const CallSite& site_of_probe(const char* todo, const char* file, int line) {
  static auto& sites = *new std::map<std::pair<const char*, int>, CallSite>;
  const auto [entry, is_new] = sites.try_emplace({file, line}, CallSite{"", file, line});
  if (is_new) entry->second.text = (new std::string("the probe of TODO " + std::string(todo)))->c_str();
  return entry->second;
}

}  // namespace

void finish_probes(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::unique_lock lock(probes().mutex, patience);
  if (!lock.owns_lock()) return;
  for (PendingProbe& probe : probes().pending) {
    cudaError_t status = cudaSuccess;
    while ((status = cudaEventQuery(probe.copied)) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    CUDA_CHECK(status);
    cudaGetLastError();  // "not ready" was an answer
    add_values(probe.line, probe.values, probe.count);
    record_line(probe.line);
  }
  probes().pending.clear();
}

void make_room_for_probes() { probes().arena.grow(kArenaBytes); }

// Several cores may come to a TODO in a kernel at the same time.
void todo_on_host(const char* id, const char* file, int line) {
  static std::atomic_flag speaks;
  if (speaks.test_and_set() || !first_of_job()) {
    // Another core or rank speaks; it ends this one too.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    _exit(kTodo);
  }
  std::fflush(stdout);
  std::fprintf(stderr, "\nNot filled in yet:\n%s  at %s:%d\n", todo_text(file, line).c_str(), file, line);
  if (!recorder().record_path.empty()) {
    finish_probes(std::chrono::milliseconds(1000));
    const Json end{{"type", "end"}, {"status", "todo"}, {"todo", id}};
    write_file(recorder().record_path, recorder().run_line + "\n" + recorder().lines + end.dump() + "\n");
  }
  let_others_pass();
  end_job(kTodo);
}

void probe(const char* todo, const std::string& name, const float* tensor, std::initializer_list<int> shape,
           cudaStream_t stream, const char* file, int source_line) {
  std::optional<Json> line = begin_probe(todo, name);
  if (!line) return;
  const std::lock_guard lock(probes().mutex);
  PendingProbe pending{*line, nullptr, 1, Event()};
  pending.line["shape"] = shape;
  for (int extent : shape) pending.count *= static_cast<std::size_t>(extent);
  const std::size_t bytes = pending.count * sizeof(float);
  if (bytes > 0) {
    pending.values = probes().arena.take(pending.count);
    const CallSite& site = site_of_probe(todo, file, source_line);
    const InCall in_call(site);
    const cudaError_t status = cudaMemcpyAsync(pending.values, tensor, bytes, cudaMemcpyDefault, stream);
    if (status != cudaSuccess) cuda_failed(status, site.text, file, source_line);
  }
  CUDA_CHECK(cudaEventRecord(pending.copied, stream));
  probes().pending.push_back(std::move(pending));
}

void probe(const char* todo, const std::string& name, const std::vector<double>& values) {
  std::optional<Json> line = begin_probe(todo, name);
  if (!line) return;
  (*line)["shape"] = {values.size()};
  add_values(*line, values.data(), values.size());
  record_line(*line);
}

void probe(const char* todo, const std::string& name, const std::vector<int>& values) {
  probe(todo, name, std::vector<double>(values.begin(), values.end()));
}

}  // namespace workshop
