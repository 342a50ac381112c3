// SPDX-License-Identifier: Apache-2.0
#include "common/record/record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "common/base/files.h"
#include "common/base/ranks.h"
#include "common/nccl/gather.h"
#include "common/options/options.h"
#include "common/record/json_lines.h"
#include "common/record/recorder.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {
namespace {

// Memory in use on a device, at the end of the epoch with the largest total.
struct DeviceMemory {
  std::size_t accounted = 0, in_use = 0;  // bytes
};
std::map<int, DeviceMemory>& most_memory() {
  static auto& memory = *new std::map<int, DeviceMemory>;
  return memory;
}

Json memory_line(int rank, int number, const MemoryUses& uses) {
  Json peak, current;
  for (std::size_t kind = 0; kind < kMemoryKinds.size(); ++kind) {
    peak[kMemoryKinds[kind]] = uses[kind].peak;
    current[kMemoryKinds[kind]] = uses[kind].current;
  }
  const DeviceMemory& most = most_memory()[number];
  const Json device{{"number", number}, {"accounted", most.accounted}, {"in_use", most.in_use}};
  return {{"type", "memory"}, {"rank", rank}, {"peak", peak}, {"current", current}, {"device", device}};
}

// Returns the concatenated texts of all ranks, on rank 0.
std::string gather_on_rank_0(const std::string& text, ncclComm_t comm) {
  std::string all;
  for (const std::string& one : gather_text(text, comm, Stream(), /*on_all_ranks=*/false)) all += one;
  return all;
}

// Tells the NaN of unwritten memory, which has all bits set, from other NaNs: arithmetic keeps its upper bits, while
// 0/0 gives a NaN with only one bit of the mantissa set.
bool is_fill(double nan) {
  constexpr std::uint64_t kFloatBits = 0x7FFF'FFFF'E000'0000;  // of a double converted from float, without the sign
  return (std::bit_cast<std::uint64_t>(nan) & kFloatBits) == kFloatBits;
}

}  // namespace

Recorder& recorder() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

Json number(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return is_fill(value) ? "unwritten" : "nan";
  return value > 0 ? "inf" : "-inf";
}

namespace {

template <typename T>
void append(std::string& text, T value) {
  if (std::isfinite(value)) {
    std::array<char, 32> digits;
    text.append(digits.begin(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  } else {
    text += number(value).dump();
  }
  text += ',';
}

}  // namespace

void append_number(std::string& text, float value) { append(text, value); }
void append_number(std::string& text, double value) { append(text, value); }

void start_recording(const Options& options, const Ranks& ranks) {
  Recorder& r = recorder();
  r.record_path = options.record;
  r.timeline_path = options.timeline;
#ifdef WORKSHOP_BACKEND_CPU
  cpu::looks_after_program("/common/record/");
  r.first_synchronizations = static_cast<long>(cpu::counters().synchronizations);
  r.first_events = static_cast<long>(cpu::counters().events);
#endif
  if (!r.record_path.empty()) start_ledger();
  if (!r.timeline_path.empty()) start_timeline();
  if (ranks.rank == 0) {
    claim_file("--record", r.record_path);
    claim_file("--timeline", r.timeline_path);
  }
  const std::size_t slash = options.program().find('/');
  Json run{{"type", "run"},
           {"version", 1},  // docs/record.md
           {"chapter", options.program().substr(0, slash)},
           {"program", options.program().substr(slash + 1)},
#ifdef WORKSHOP_BACKEND_CPU
           {"backend", "cpu"},
#else
           {"backend", "cuda"},
#endif
           {"world", ranks.world},
           {"options", Json::parse(options.json())}};
#ifdef WORKSHOP_BACKEND_CPU
  const char* machine = std::getenv("WORKSHOP_SIMULATE");
  if (machine != nullptr && *machine != '\0') run["simulated"] = machine;
#endif
  r.run_line = run.dump();
}

void record_text(const std::string& line) {
  static std::mutex mutex;  // the journal's thread records too
  const std::lock_guard lock(mutex);
  recorder().lines += line;
  recorder().lines += '\n';
}

void record_loss(int replica, int step, int epoch, float loss, float global_loss, const float* gradient_norm,
                 const float* auxiliary) {
  if (recorder().record_path.empty()) return;
  Json line{{"type", "step"}, {"replica", replica},   {"step", step},
            {"epoch", epoch}, {"loss", number(loss)}, {"global_loss", number(global_loss)}};
  if (gradient_norm != nullptr) line["gradient_norm"] = number(*gradient_norm);
  if (auxiliary != nullptr) line["auxiliary_loss"] = number(*auxiliary);
  record_line(line);
}

void record_value(const std::string& name, double value) {
  if (recorder().record_path.empty()) return;
  record_line(Json{{"type", "value"}, {"rank", process_ranks().rank}, {"name", name}, {"value", number(value)}});
}

std::vector<double> read_values(const std::string& path, const std::string& name) {
  std::istringstream lines(read_file(path, /*links=*/true));
  std::map<std::string, double> named;
  std::string text;
  for (bool first = true; std::getline(lines, text); first = false) {
    if (!first && text.find(name) == std::string::npos) continue;  // parsing the probes would take seconds
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("type")) throw std::runtime_error(path + ": not a run record");
    const auto has = [&](const char* key, auto value) { return line.contains(key) && line[key] == value; };
    if (!has("type", "value") || !has("rank", 0) || !line.contains("name") || !line.contains("value")) continue;
    if (line["name"].is_string() && line["value"].is_number()) named[line["name"]] = line["value"];
  }
  std::vector<double> values;
  for (auto next = named.find(name + " 0"); next != named.end();
       next = named.find(name + " " + std::to_string(values.size()))) {
    values.push_back(next->second);
  }
  return values;
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
                   {"hash", std::to_string(std::hash<std::string_view>{}(bytes))}});
  if (replica > 0) return;
  record_text(with_values({{"type", "parameter"}, {"name", name}, {"shape", shape}}, values.data(), count));
}

void note_memory_on_device() {
  if (recorder().record_path.empty()) return;
  for (const auto& [number, uses] : memory_uses()) {
    const OnDevice on_device(number);
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    DeviceMemory& most = most_memory()[number];
    if (total - free <= most.in_use) continue;
    most.in_use = total - free;
    most.accounted = 0;
    for (const MemoryUse& use : uses) most.accounted += use.current;
    most.accounted -= memory_use(Memory::host).current;
  }
}

void note_host_without_steps() {
#ifdef WORKSHOP_BACKEND_CPU
  Recorder& r = recorder();
  if (r.steps_done > 0) return;
  r.synchronizations = static_cast<long>(cpu::counters().synchronizations) - r.first_synchronizations;
  r.events = static_cast<long>(cpu::counters().events) - r.first_events;
#endif
}

void write_record(ncclComm_t comm) {
  Recorder& r = recorder();
  const int rank = process_ranks().rank;
  if (!r.record_path.empty()) {
    finish_probes(std::chrono::minutes(1));
    note_memory_on_device();
    record_ledger(rank);
    const int own = current_device();
    const std::map<int, MemoryUses>& held = memory_uses();
    const auto of_own = held.find(own);
    record_line(memory_line(rank, own, of_own != held.end() ? of_own->second : MemoryUses{}));
    for (const auto& [device, uses] : held) {
      if (device != own) record_line(memory_line(rank, device, uses));
    }
#ifdef WORKSHOP_BACKEND_CPU
    record_line(Json{{"type", "host"},
                     {"rank", rank},
                     {"allocations", r.allocations},
                     {"synchronizations", r.synchronizations},
                     {"events", r.events},
                     {"devices", cpu::counters().devices},
                     {"handles", cpu::counters().handles}});
    for (const cpu::Stall& stall : cpu::stalls()) {
      record_line(Json{{"type", "stall"},
                       {"rank", rank},
                       {"on", stall.on},
                       {"call", stall.call},
                       {"place", stall.place},
                       {"behind", stall.behind},
                       {"seconds", stall.seconds},
                       {"times", stall.times}});
    }
#endif
    const std::string lines = gather_on_rank_0(r.lines, comm);
    if (rank == 0) {
      const Json end{
          {"type", "end"}, {"status", "complete"}, {"steps", r.steps_done}, {"seconds_per_step", r.seconds_per_step}};
      write_file(r.record_path, r.run_line + "\n" + lines + end.dump() + "\n");
    }
  }
  if (!r.timeline_path.empty()) {
    std::string events = gather_on_rank_0(timeline_json(rank), comm);
    if (!events.empty()) events.erase(events.size() - 2);  // the comma and newline after the last event
    if (rank == 0) {
      write_file(r.timeline_path, "{\"otherData\": " + r.run_line + ",\n\"traceEvents\": [\n" + events + "\n]}\n");
    }
  }
}

}  // namespace workshop
