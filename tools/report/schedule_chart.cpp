// SPDX-License-Identifier: Apache-2.0
#include "tools/report/schedule_chart.h"

#include "04_pipeline/support/schedule_simulation.h"

namespace workshop {

// The schedules are the solution's, which contain probes. This tool records nothing.
void probe(const char*, Label, std::span<const int>) {}

namespace tools {
namespace {

constexpr int kMostSlots = 2048;  // per stage

Schedule make(const std::string& name, int stages, int micro_batches, int chunks) {
  if (name == "gpipe") return gpipe(stages, micro_batches);
  if (name == "1f1b") return one_f_one_b(stages, micro_batches);
  if (name == "zb-h1") return zb_h1(stages, micro_batches);
  if (name == "zb-v") return zb_v(stages, micro_batches);
  return interleaved(stages, micro_batches, chunks);
}

}  // namespace

std::vector<Slot> schedule_chart(const std::string& name, int stages, int micro_batches, int chunks) {
  const bool known = name == "gpipe" || name == "1f1b" || name == "zb-h1" ||
                     (name == "interleaved" && micro_batches % stages == 0) ||
                     (name == "zb-v" && micro_batches >= 2 * stages);
  if (!known || stages < 1 || micro_batches < 1 || chunks < 1 || micro_batches > kMostSlots / chunks / stages)
    return {};
  const Schedule schedule = make(name, stages, micro_batches, chunks);
  const ScheduleTimes times = ScheduleSimulation(schedule).times;
  std::vector<Slot> slots;
  for (int stage = 0; stage < stages; ++stage) {
    for (std::size_t at = 0; at < times[stage].size(); ++at) {
      const Instruction& i = schedule.lists[stage][at];
      if (is_compute(i.kind)) slots.push_back({stage, times[stage][at] - 1, i.kind, i.micro_batch, i.chunk});
    }
  }
  return slots;
}

}  // namespace tools
}  // namespace workshop
