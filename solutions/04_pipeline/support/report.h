// SPDX-License-Identifier: Apache-2.0
// Prints schedules, predicted times, and how the stages spent their time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/idle_clock.h"
#include "03_model_parallel/support/layer_times.h"
#include "04_pipeline/stage.h"
#include "04_pipeline/support/check_schedule.h"
#include "common/job/job.h"

namespace workshop {

// Returns the share of the time in which a stage idles. A forward, and a backward without the gradients of the weights,
// take equally long; these gradients take `weights` times as long. For a split schedule, `weights` is at most 1.
inline double bubble(const Schedule& s, double weights) {
  const double busy = s.chunks * s.micro_batches * (2 + weights);
  double idle = (s.stages - 1) * (2 + weights);
  if (s.name == "zb-h1") idle -= (s.stages - 1 + std::min(s.stages, s.micro_batches) - 1) * weights;
  if (s.name == "zb-v") idle = (s.stages - 1) * (2 - weights);
  return idle / (busy + idle);
}

// Returns the same share for any schedule: that of its simulation, if a forward and a backward take `compute`
// milliseconds each, and the gradients of the weights `weights`.
inline double simulated_bubble(const Schedule& s, double compute, double weights) {
  const int each = static_cast<int>(1000 * compute), more = static_cast<int>(1000 * weights);  // slots of 1 us
  const ScheduleSlots lengths = {each, s.splits_backward ? each : each + more, more};
  const double busy = s.chunks * s.micro_batches * (2.0 * each + more), whole = makespan(s, lengths);
  return (whole - busy) / whole;
}

// Returns the largest number of micro-batches that are in flight on a stage at the same time.
inline int largest_in_flight(const Schedule& s, int stage) {
  int in_flight = 0, largest = 0;
  for (const Instruction& i : s.lists[stage]) {
    if (i.kind == Instruction::forward) largest = std::max(largest, ++in_flight);
    if (i.kind == last_use(s)) --in_flight;
  }
  return largest;
}

// Prints the chart and the bubble. The numbers come from the lists of the stages, not from a formula, so they hold for
// a wrong order, too.
inline void print_schedule(const Schedule& s, const ScheduleSlots& lengths) {
  const double slots = makespan(s, lengths);
  const double busy =
      (lengths.forward + lengths.backward + (s.splits_backward ? lengths.weights : 0)) * s.micro_batches * s.chunks;
  print0("%s: %d stages, %d micro-batches, %d chunk%s per stage\n%s", s.name.c_str(), s.stages, s.micro_batches,
         s.chunks, s.chunks > 1 ? "s" : "", chart(s, {}, lengths).c_str());
  print0(
      "%.0f slots; each stage computes in %.0f of them: a bubble of %.1f %% of the time, %.1f %% of the ideal time\n",
      slots, busy, 100 * (slots - busy) / slots, 100 * (slots - busy) / busy);
  for (int stage = 0; stage < s.stages; ++stage) {
    print0("stage %d has at most %d in flight\n", stage, largest_in_flight(s, stage));
  }
}

// Returns the predicted milliseconds per step, without messages and update, if each stage has one of the parts with
// these bounds: the slowest stage works on one micro-batch after the other, and filling and draining the pipeline takes
// one forward and one backward of every other stage.
inline double expected_step(const std::vector<LayerTime>& times, const std::vector<int>& bounds, int micro_batches) {
  double all = 0, slowest = 0;
  for (std::size_t part = 0; part + 1 < bounds.size(); ++part) {
    double time = 0;
    for (int layer = bounds[part]; layer < bounds[part + 1]; ++layer) time += times[layer].both();
    all += time;
    slowest = std::max(slowest, time);
  }
  return all + (micro_batches - 1) * slowest;
}

// Prints the time of each layer; prints and records the predicted step of each partition.
inline void print_layer_times(const Schedule& schedule, const std::vector<std::int64_t>& parameters,
                              const std::vector<LayerTime>& times) {
  print0("layer  parameters  forward    backward\n");
  for (std::size_t i = 0; i < times.size(); ++i) {
    print0("%5zu  %10lld  %7.3f ms  %7.3f ms\n", i, static_cast<long long>(parameters[i]), times[i].forward,
           times[i].backward);
  }
  const std::pair<const char*, Partition> partitions[] = {
      {"uniform", Partition::uniform}, {"parameters", Partition::parameters}, {"time", Partition::time}};
  for (const auto& [name, how] : partitions) {
    const std::vector<int> bounds =
        partition_layers(how == Partition::time ? nanoseconds(times) : parameters, schedule.parts(), how);
    print0("%-10s ", name);
    for (std::size_t part = 0; part + 1 < bounds.size(); ++part) print0("  %d-%d", bounds[part], bounds[part + 1] - 1);
    if (schedule.chunks > 1) {
      print0("\n");
      continue;
    }
    const double expected = expected_step(times, bounds, schedule.micro_batches);
    record_value(std::string("expected step, ") + name, expected);
    print0(":  a step of %.3f ms\n", expected);
  }
}

// Prints the activations that each stage holds and the share of its time for which it idles; in a simulation, also the
// measured bubble and the expected one. Records the shares and the measured bubble. Collective; stays out of the
// ledger.
inline void print_idle_shares(PipelineStage& stage, const IdleClock& clock,
                              const std::optional<double>& expected_bubble, const Job& job, cudaStream_t stream) {
  CUDA_CHECK(cudaStreamSynchronize(stream));
  struct Row {
    float idle;
    int activations;      // micro-batches whose activations the stage has room for, over all chunks
    std::uint64_t bytes;  // peak of all activations
  };
  Row mine{static_cast<float>(clock.idle_share()), 0, memory_use(Memory::activations).peak};
  for (const ModelChunk& chunk : stage.chunks()) mine.activations += static_cast<int>(chunk.activations.buffers.size());
  const std::vector<Row> all = job.group().gather(mine);
  double mean = 0;
  print0("stage  activations held  bytes of activations  idle\n");
  for (int rank = 0; rank < job.world(); ++rank) {
    print0("%5d  %16d  %20llu  %3.0f %%\n", rank, all[rank].activations,
           static_cast<unsigned long long>(all[rank].bytes), 100 * all[rank].idle);
    mean += all[rank].idle / job.world();
  }
  record_value("idle share", mine.idle);
  // The last stage waits until the first micro-batch arrives. Only on a simulated machine, the times are always the
  // same.
  if (time_is_simulated() && job.rank() + 1 == job.world()) {
    probe("04.I", "1 if the last stage is idle while it waits for messages", std::array{int{mine.idle > 0.2f}});
  }
  if (!expected_bubble) return;
  record_value("bubble", mine.idle);
  if (job.rank() == 0) record_value("mean bubble", mean);
  print0("bubble: measured %.1f %%, expected %.1f %%\n", 100 * mean, 100 * *expected_bubble);
}

}  // namespace workshop
