// SPDX-License-Identifier: Apache-2.0
#include "common/record/probe.h"

#include <cuda_bf16.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/format.h"
#include "common/base/roll_call.h"
#include "common/nccl/nccl_calls.h"
#include "common/record/json_lines.h"
#include "common/record/recorder.h"

namespace workshop {
namespace {

// Size of the blocks in which memory for probes is allocated. On GPUs, the first block is larger than the tests and
// ./workshop check need. On the cpu backend, blocks are small: an allocation never waits, but writes to all of the
// block.
#ifdef WORKSHOP_BACKEND_CPU
constexpr std::size_t kArenaBytes = 256 << 10;
#else
constexpr std::size_t kArenaBytes = 8 << 20;
#endif

enum class Elements { floats, integers, bfloat16s };

// A probe whose copy may not have completed.
struct PendingProbe {
  Json line;
  Elements elements;
  float* values;  // in the arena; the space may hold integers or bfloat16s instead
  std::size_t count;
  Event copied;
};

// Pinned memory for probes, so that their copies are asynchronous. Allocate it before the steps, because an allocation
// may wait for the device. It is never freed, because freeing may wait for a kernel that never ends.
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

// Protected by `mutex`, because other threads collect probes too: the journal's thread and, if a kernel reaches an open
// TODO, a thread of the cpu backend.
struct Probes {
  std::timed_mutex mutex;
  Arena arena;
  std::deque<PendingProbe> pending;
};
// Never destroyed: its events would be destroyed after CUDA has shut down.
Probes& probes() {
  static Probes& probes = *new Probes;
  return probes;
}

// With WORKSHOP_JOURNAL=1, each rank writes its probes so far to a file of its own next to the record, RECORD.rank0,
// for runs that do not end normally. The type `passed` means that the program has reached a probe; `probe` has the
// values too.
class Journal {
 public:
  static Journal& get() {
    static Journal& journal = *new Journal;
    return journal;
  }
  bool is_open() const { return file_ >= 0; }
  // Writes a whole line at once, so that a rank that is killed leaves complete lines.
  void write(const Json& json) const { write_text(json.dump()); }
  void write_text(const std::string& text) const {
    if (!is_open()) return;
    char end = '\n';
    const iovec line[] = {{const_cast<char*>(text.data()), text.size()}, {&end, 1}};
    if (writev(file_, line, 2) < 0) return;  // ignored: the run does not depend on the journal
  }

 private:
  Journal() {
    const char* asked = std::getenv("WORKSHOP_JOURNAL");
    if (asked == nullptr || std::string_view(asked) != "1" || recorder().record_path.empty()) return;
    const std::string path = recorder().record_path + ".rank" + std::to_string(process_ranks().rank);
    file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    write_text(recorder().run_line);
  }
  int file_ = -1;
};

std::string text_of(PendingProbe& probe) {
  switch (probe.elements) {
    case Elements::integers:
      probe.line["integers"] = true;
      return with_values(probe.line, reinterpret_cast<const int*>(probe.values), probe.count);
    case Elements::bfloat16s: {
      const auto* values = reinterpret_cast<const __nv_bfloat16*>(probe.values);
      const std::vector<float> floats(values, values + probe.count);
      return with_values(probe.line, floats.data(), probe.count);
    }
    default:
      return with_values(probe.line, probe.values, probe.count);
  }
}

// Turns the probes that have been copied into lines, in order. Returns cudaErrorNotReady at the first probe whose copy
// has not completed.
cudaError_t collect_probes() {
  std::deque<PendingProbe>& pending = probes().pending;
  for (; !pending.empty(); pending.pop_front()) {
    PendingProbe& probe = pending.front();
    const cudaError_t status = cudaEventQuery(probe.copied);
    if (status == cudaErrorNotReady) cudaGetLastError();  // clears the status: "not ready" is not an error here
    if (status != cudaSuccess) return status;
    // When the watchdog ends the job, it aborts messages, and streams go on with data that was never received.
    if (InCall::held()) return cudaErrorNotReady;
    const std::string text = text_of(probe);
    record_text(text);
    Journal::get().write_text(text);
  }
  return cudaSuccess;
}

// Writes the journal, in a separate thread. If the program queried the device itself, it would wait for work and thus
// hide that it lacks a wait of its own.
[[noreturn]] void keep_journal(int device) {
  cudaSetDevice(device);
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    const std::unique_lock lock(probes().mutex, std::try_to_lock);
    if (lock.owns_lock()) collect_probes();
  }
}

// "TODO 02.1" or, for a region that is a whole function, "WRITE 02.A".
std::string region_name(const std::string& id) {
  return (std::isupper(static_cast<unsigned char>(id.back())) ? "WRITE " : "TODO ") + id;
}

// Returns the comment of the region above `line` in the source file, starting at its name.
std::string todo_text(const std::string& id, const char* file, int line) {
  const std::string begin = "// " + region_name(id);
  std::ifstream source(file);
  std::string text, read;
  for (int i = 1; i < line && std::getline(source, read); ++i) {
    const std::size_t start = read.find_first_not_of(" \t");
    const bool comment = start != std::string::npos && read.compare(start, 2, "//") == 0;
    if (!comment || read.compare(start, begin.size(), begin) == 0) text.clear();
    if (comment) text += "  " + read.substr(std::min(start + 3, read.size())) + "\n";
  }
  return text;
}

// Returns the probe's line without its values.
Json begin_probe(const char* todo, Label name) {
  static int sequence = 0;
  return Json{{"type", "probe"},     {"rank", process_ranks().rank}, {"id", todo},
              {"name", name.text()}, {"step", recorder().step},      {"sequence", sequence++}};
}

// The number of values that all probes together may copy, 2 GiB. Without this limit, the probes of a large model would
// fill the host's memory. Once that many are copied, a probe copies only the first values of its tensor.
constexpr std::size_t kMostProbed = std::size_t{1} << 29, kAlwaysProbed = 4096;

void set_shape(Json& line, std::initializer_list<int> shape) {
  static std::size_t probed = 0;
  std::size_t count = 1;
  for (const int extent : shape) count *= static_cast<std::size_t>(extent);
  if (count > kAlwaysProbed && probed + count > kMostProbed) {
    count = kAlwaysProbed;
    line["of"] = shape;
    line["shape"] = {count};
  } else {
    line["shape"] = shape;
  }
  probed += count;
}

// Notes in the journal that the program has reached this probe.
void note_passed(Json line) {
  if (!Journal::get().is_open()) return;
  line["type"] = "passed";
  Journal::get().write(line);
}

// Enqueues the copy of a probe on `stream`.
void enqueue_probe(Json line, const void* tensor, Elements elements, cudaStream_t stream, const CallSite& site) {
  const std::lock_guard lock(probes().mutex);
  PendingProbe pending{std::move(line), elements, nullptr, 1, Event()};
  for (const auto& extent : pending.line["shape"]) pending.count *= extent.get<std::size_t>();
  static_assert(sizeof(int) == sizeof(float));
  const std::size_t bytes = pending.count * (elements == Elements::bfloat16s ? sizeof(__nv_bfloat16) : sizeof(float));
  if (bytes > 0) {
    pending.values = probes().arena.take(pending.count);
    const InCall in_call(site);
    const cudaError_t status = cudaMemcpyAsync(pending.values, tensor, bytes, cudaMemcpyDefault, stream);
    if (status != cudaSuccess) cuda_failed(status, site.text, site.file, site.line);
  }
  CUDA_CHECK(cudaEventRecord(pending.copied, stream));
  probes().pending.push_back(std::move(pending));
}

// Never destroyed: the watchdog may look at it at any time.
const CallSite& site_of_probe(const char* todo, const char* file, int line) {
  struct Site {
    std::string text;
    CallSite site;
  };
  static auto& sites = *new std::map<std::pair<const char*, int>, Site>;
  const auto [entry, is_new] =
      sites.try_emplace({file, line}, Site{"the probe of " + region_name(todo), {"", file, line}});
  auto& [text, site] = entry->second;
  if (is_new) site.text = text.c_str();
  return site;
}

void probe_on_device(const char* todo, Label name, const void* tensor, Elements elements,
                     std::initializer_list<int> shape, cudaStream_t stream, const char* file, int source_line) {
  if (!probing()) return;
  Json line = begin_probe(todo, name);
  note_passed(line);
  set_shape(line, shape);
  const CallSite& site = site_of_probe(todo, file, source_line);
  // The NCCL calls of an open group start when the group ends. The copy must come after them.
  after_group([line, tensor, elements, stream, &site] { enqueue_probe(line, tensor, elements, stream, site); });
}

}  // namespace

bool probing() {
  static const char* asked = std::getenv("WORKSHOP_PROBES");  // 0: for runs that are compared only by their results
  static const bool wanted = asked == nullptr || std::string(asked) != "0";
  return wanted && !recorder().record_path.empty() && recorder().step < kProbedSteps;
}

void finish_probes(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::unique_lock lock(probes().mutex, patience);
  if (!lock.owns_lock()) return;
  cudaError_t status = cudaSuccess;
  while ((status = collect_probes()) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  CUDA_CHECK(status);
}

void make_room_for_probes() {
  probes().arena.grow(kArenaBytes);
  if (!Journal::get().is_open()) return;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  std::thread(keep_journal, device).detach();
}

// Several threads may reach a TODO in a kernel at the same time (cpu backend).
void todo_on_host(const char* id, const char* file, int line) {
  static std::atomic_flag speaks;
  if (speaks.test_and_set() || !first_of_job()) {
    // Another thread or rank prints the message and ends this one too.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    _exit(kTodo);
  }
  std::fflush(stdout);
  print_error(formatted("\nNot filled in yet:\n%s  at %s:%d\n", todo_text(id, file, line).c_str(), file, line));
  if (!recorder().record_path.empty()) {
    finish_probes(std::chrono::milliseconds(1000));
    const Json end{{"type", "end"}, {"status", "todo"}, {"todo", id}};
    Journal::get().write(end);
    write_file(recorder().record_path, recorder().run_line + "\n" + recorder().lines + end.dump() + "\n");
  }
  let_others_pass();
  end_job(kTodo);
}

void probe(const char* todo, Label name, const float* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file, int source_line) {
  probe_on_device(todo, name, tensor, Elements::floats, shape, stream, file, source_line);
}

void probe(const char* todo, Label name, const int* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file, int source_line) {
  probe_on_device(todo, name, tensor, Elements::integers, shape, stream, file, source_line);
}

void probe_bfloat16(const char* todo, Label name, const void* tensor, std::initializer_list<int> shape,
                    cudaStream_t stream, const char* file, int source_line) {
  probe_on_device(todo, name, tensor, Elements::bfloat16s, shape, stream, file, source_line);
}

namespace {

template <typename T>
void probe_on_host(const char* todo, Label name, std::span<const T> values) {
  if (!probing()) return;
  Json line = begin_probe(todo, name);
  line["shape"] = {values.size()};
  if constexpr (std::is_integral_v<T>) line["integers"] = true;
  // Crashes here if a TODO has left a null pointer. So note_passed() comes after it.
  const std::string text = with_values(line, values.data(), values.size());
  note_passed(line);
  record_text(text);
  Journal::get().write_text(text);
}

}  // namespace

void probe(const char* todo, Label name, std::span<const double> values) { probe_on_host(todo, name, values); }

void probe(const char* todo, Label name, std::span<const int> values) { probe_on_host(todo, name, values); }

}  // namespace workshop
