#include "common/record.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "common/files.h"
#include "common/record/recorder.h"
#include "common/run/roll_call.h"
#ifdef WORKSHOP_BACKEND_CPU
#include "workshop_cpu.h"
#endif

namespace workshop {
namespace {

using Json = nlohmann::ordered_json;      // "type" first
constexpr std::size_t kMaxValues = 4096;  // of a tensor that are written out in full
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

struct Recorder {
  std::string record_path, timeline_path, run_line;
  std::string lines;  // of this rank
  Arena arena;
  std::vector<PendingProbe> probes;
  int step = 0;  // optimizer step that is being enqueued
  int steps_done = 0;
  double seconds_per_step = 0;
  long allocations = 0, synchronizations = 0;  // in steps (cpu backend)
  MemoryUse memory[kMemoryKinds.size()];
  std::size_t accounted = 0, on_device = 0;  // bytes, at the end of the epoch in which the device has held the most
};
// Never destroyed: its events would be when CUDA is gone.
Recorder& recorder() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

// JSON has no NaN: what is not finite is written as a string and so never equals a number.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

template <typename T>
void add_values(Json& line, const T* values, std::size_t count) {
  double squares = 0, sum = 0;
  Json list = Json::array();
  for (std::size_t i = 0; i < count; ++i) {
    squares += static_cast<double>(values[i]) * values[i];
    sum += values[i];
    if (i < kMaxValues) list.push_back(number(values[i]));
  }
  line["values"] = std::move(list);
  line["l2"] = number(std::sqrt(squares));
  line["sum"] = number(sum);
}

// Turns copied probes into lines, in order. Waits at most `patience` for them.
void finish_probes(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (PendingProbe& probe : recorder().probes) {
    cudaError_t status = cudaSuccess;
    while ((status = cudaEventQuery(probe.copied)) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    CUDA_CHECK(status);
    cudaGetLastError();  // "not ready" was an answer
    add_values(probe.line, probe.values, probe.count);
    record_line(probe.line.dump());
  }
  recorder().probes.clear();
}

// Adds (or with sign -1 takes off) what the host has allocated on the device and waited for so far: around the steps of
// an epoch this leaves what the steps did.
void count_host([[maybe_unused]] int sign) {
#ifdef WORKSHOP_BACKEND_CPU
  const auto counters = cpu::counters();
  recorder().allocations += sign * static_cast<long>(counters.allocations);
  recorder().synchronizations += sign * static_cast<long>(counters.synchronizations);
#endif
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

}  // namespace

// ---- exercises -----------------------------------------------------------------------------------------------------

void todo(const char* id, const char* file, int line) {
  if (!first_of_job()) {
    // Another rank speaks; it ends this one too.
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

namespace {

// The probe's line but for its values; nullopt where nothing is to be recorded.
std::optional<Json> begin_probe(const char* todo, const std::string& name) {
  static int sequence = 0;
  if (recorder().record_path.empty() || recorder().step >= kProbedSteps) return std::nullopt;
  return Json{{"type", "probe"}, {"rank", process_ranks().rank}, {"id", todo},
              {"name", name},    {"step", recorder().step},      {"sequence", sequence++}};
}

}  // namespace

void probe(const char* todo, const std::string& name, const float* tensor, std::initializer_list<int> shape,
           cudaStream_t stream) {
  std::optional<Json> line = begin_probe(todo, name);
  if (!line) return;
  PendingProbe pending{*line, nullptr, 1, Event()};
  pending.line["shape"] = shape;
  for (int extent : shape) pending.count *= static_cast<std::size_t>(extent);
  const std::size_t bytes = pending.count * sizeof(float);
  if (bytes > 0) {
    pending.values = recorder().arena.take(pending.count);
    CUDA_CHECK(cudaMemcpyAsync(pending.values, tensor, bytes, cudaMemcpyDefault, stream));
  }
  CUDA_CHECK(cudaEventRecord(pending.copied, stream));
  recorder().probes.push_back(std::move(pending));
}

void probe(const char* todo, const std::string& name, const std::vector<double>& values) {
  std::optional<Json> line = begin_probe(todo, name);
  if (!line) return;
  (*line)["shape"] = {values.size()};
  add_values(*line, values.data(), values.size());
  record_line(line->dump());
}

void probe(const char* todo, const std::string& name, const std::vector<int>& values) {
  probe(todo, name, std::vector<double>(values.begin(), values.end()));
}

// ---- run record ----------------------------------------------------------------------------------------------------

void start_recording(const Options& options, const Ranks& ranks) {
  Recorder& r = recorder();
  r.record_path = options.record;
  r.timeline_path = options.timeline;
  if (!r.timeline_path.empty()) enable_timeline();
  if (ranks.rank == 0) {
    check_writable("--record", r.record_path);
    check_writable("--timeline", r.timeline_path);
  }
  const std::size_t slash = options.program().find('/');
  r.run_line = Json{{"type", "run"},
                    {"chapter", options.program().substr(0, slash)},
                    {"program", options.program().substr(slash + 1)},
#ifdef WORKSHOP_BACKEND_CPU
                    {"backend", "cpu"},
#else
                    {"backend", "cuda"},
#endif
                    {"world", ranks.world},
                    {"options", Json::parse(options.json())}}
                   .dump();
}

void record_on_device() {
  if (!recorder().record_path.empty()) recorder().arena.grow(kArenaBytes);
}

void record_line(std::string json) { recorder().lines += json + "\n"; }

void record_loss(int replica, int step, int epoch, float loss, float global_loss) {
  if (recorder().record_path.empty()) return;
  record_line(Json{{"type", "step"},
                   {"replica", replica},
                   {"step", step},
                   {"epoch", epoch},
                   {"loss", number(loss)},
                   {"global_loss", number(global_loss)}}
                  .dump());
}

void record_value(const std::string& name, double value) {
  if (recorder().record_path.empty()) return;
  record_line(Json{{"type", "value"}, {"rank", process_ranks().rank}, {"name", name}, {"value", number(value)}}.dump());
}

void record_parameter(int replica, const std::string& name, const float* device, std::vector<int> shape,
                      cudaStream_t stream) {
  if (recorder().record_path.empty()) return;
  std::size_t count = 1;
  for (int extent : shape) count *= static_cast<std::size_t>(extent);
  std::vector<float> values(count);
  CUDA_CHECK(cudaMemcpyAsync(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
  record_line(Json{{"type", "replica"},
                   {"replica", replica},
                   {"name", name},
                   {"hash", std::to_string(std::hash<std::string_view>{}(bytes))}}
                  .dump());
  if (replica > 0) return;
  Json line{{"type", "parameter"}, {"name", name}, {"shape", shape}};
  add_values(line, values.data(), count);
  record_line(line.dump());
}

MemoryUse memory_use(Memory kind) { return recorder().memory[static_cast<int>(kind)]; }

void account_memory(Memory kind, std::ptrdiff_t bytes) {
  MemoryUse& use = recorder().memory[static_cast<int>(kind)];
  use.current += static_cast<std::size_t>(bytes);
  use.peak = std::max(use.peak, use.current);
}

namespace {

// Contexts, NCCL's buffers and cuBLAS's workspaces are in no account, so the device is asked too. What other processes
// hold there counts as well.
void note_memory_on_device() {
  Recorder& r = recorder();
  if (r.record_path.empty()) return;
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (total - free <= r.on_device) return;
  r.on_device = total - free;
  r.accounted = 0;
  for (const MemoryUse& use : r.memory) r.accounted += use.current;
  r.accounted -= memory_use(Memory::host).current;
}

Json memory_line(int rank) {
  Json peak, current;
  for (std::size_t kind = 0; kind < kMemoryKinds.size(); ++kind) {
    peak[kMemoryKinds[kind]] = recorder().memory[kind].peak;
    current[kMemoryKinds[kind]] = recorder().memory[kind].current;
  }
  const Json device{{"accounted", recorder().accounted}, {"in_use", recorder().on_device}};
  return {{"type", "memory"}, {"rank", rank}, {"peak", peak}, {"current", current}, {"device", device}};
}

// All ranks' texts, one after the other, on rank 0. Goes through NCCL, which is there with and without MPI.
std::string gather_text(const std::string& text, ncclComm_t comm) {
  const OffTheRecord off_the_record;
  int rank = 0, world = 0;
  NCCL_CHECK(ncclCommUserRank(comm, &rank));
  NCCL_CHECK(ncclCommCount(comm, &world));
  Stream stream;
  std::vector<unsigned long long> sizes(world);
  sizes[rank] = text.size();
  DeviceBuffer<unsigned long long> device_sizes(world, Memory::data);
  device_sizes.upload(sizes, stream);
  NCCL_CHECK(ncclAllGather(device_sizes.data() + rank, device_sizes.data(), 1, ncclUint64, comm, stream));
  sizes = device_sizes.download(stream);

  std::size_t total = 0;
  for (auto size : sizes) total += size;
  DeviceBuffer<char> mine(text.size(), Memory::data), all(rank == 0 ? total : 0, Memory::data);
  if (!text.empty()) mine.upload(text.data(), stream);
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(mine.data(), text.size(), ncclChar, 0, comm, stream));
  for (std::size_t peer = 0, offset = 0; rank == 0 && peer < sizes.size(); offset += sizes[peer++]) {
    NCCL_CHECK(ncclRecv(all.data() + offset, sizes[peer], ncclChar, static_cast<int>(peer), comm, stream));
  }
  NCCL_CHECK(ncclGroupEnd());
  const std::vector<char> received = all.download(stream);
  stream.synchronize();
  return {received.begin(), received.end()};
}

}  // namespace

void write_record(ncclComm_t comm) {
  Recorder& r = recorder();
  const int rank = process_ranks().rank;
  if (!r.record_path.empty()) {
    finish_probes(std::chrono::minutes(1));
    note_memory_on_device();
    r.lines += ledger_json(rank);
    record_line(memory_line(rank).dump());
#ifdef WORKSHOP_BACKEND_CPU
    record_line(
        Json{{"type", "host"},
             {"rank", rank},
             {"allocations", r.allocations},
             {"synchronizations", r.synchronizations},
             {"devices", cpu::counters().devices}}
            .dump());
#endif
    const std::string lines = gather_text(r.lines, comm);
    if (rank == 0) {
      const Json end{
          {"type", "end"}, {"status", "complete"}, {"steps", r.steps_done}, {"seconds_per_step", r.seconds_per_step}};
      write_file(r.record_path, r.run_line + "\n" + lines + end.dump() + "\n");
    }
  }
  if (!r.timeline_path.empty()) {
    std::string events = gather_text(timeline_json(rank), comm);
    if (!events.empty()) events.erase(events.size() - 2);  // the comma and line end of the last one
    if (rank == 0) write_file(r.timeline_path, "{\"traceEvents\": [\n" + events + "\n]}\n");
  }
}

// ---- losses --------------------------------------------------------------------------------------------------------

struct LossLog::Impl {
  int replica, replicas, log_every, max_steps;
  DeviceBuffer<float> losses, global_losses;
  int first_step = 0;  // of this epoch
  int count = 0;       // steps of this epoch so far

  // Times are taken epoch by epoch, after the probed steps of the first one if it has more.
  Event start{cudaEventDefault}, stop{cudaEventDefault};
  int timed_from = 0;
  int timed_steps = 0;
  double seconds = 0;
};

LossLog::LossLog(const Options& options, int replica, int replicas, cudaStream_t stream)
    : impl_(std::make_shared<Impl>()) {
  Impl& log = *impl_;
  log.replica = replica;
  log.replicas = replicas;
  log.log_every = options.log_every;
  log.max_steps = options.max_steps;
  const int samples = (options.samples + replicas - 1) / replicas;
  const int steps = (samples + options.batch_size - 1) / options.batch_size;
  log.losses = DeviceBuffer<float>(steps, Memory::data);
  log.global_losses = DeviceBuffer<float>(steps, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(log.losses.data(), 0, log.losses.bytes(), stream));
}

void LossLog::start_at(int step) { impl_->first_step = recorder().steps_done = step; }

float* LossLog::next(cudaStream_t stream) {
  Impl& log = *impl_;
  const int step = log.first_step + log.count;
  recorder().step = step;
  if (log.count == 0) count_host(-1);
  if (log.count == 0 || step == kProbedSteps) {
    CUDA_CHECK(cudaEventRecord(log.start, stream));
    log.timed_from = step;
  }
  return log.losses.data() + log.count++;
}

float* LossLog::losses() const { return impl_->losses.data(); }
float* LossLog::global_losses() const { return impl_->global_losses.data(); }
int LossLog::count() const { return impl_->count; }
bool LossLog::finished() const { return impl_->max_steps > 0 && impl_->first_step + impl_->count >= impl_->max_steps; }

void LossLog::end_epoch(int epoch, cudaStream_t stream) {
  Impl& log = *impl_;
  count_host(+1);
  note_memory_on_device();
  CUDA_CHECK(cudaEventRecord(log.stop, stream));
  const std::vector<float> losses = log.losses.download(stream);
  const std::vector<float> global = log.replicas == 1 ? losses : log.global_losses.download(stream);
  for (int i = 0; i < log.count; ++i) {
    const int step = log.first_step + i;
    if (log.replica >= 0) record_loss(log.replica, step, epoch, losses[i], global[i]);
    const bool shown = log.log_every > 0 && (step + 1) % log.log_every == 0;
    if (shown || i + 1 == log.count) print0("epoch %3d  step %5d  loss %.6f\n", epoch, step + 1, global[i]);
  }
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, log.start, log.stop));
  log.first_step += log.count;
  log.count = 0;
  recorder().steps_done = log.first_step;
  log.seconds += milliseconds / 1e3;
  log.timed_steps += log.first_step - log.timed_from;
  recorder().seconds_per_step = log.seconds / log.timed_steps;
  CUDA_CHECK(cudaMemsetAsync(log.losses.data(), 0, log.losses.bytes(), stream));
}

}  // namespace workshop
