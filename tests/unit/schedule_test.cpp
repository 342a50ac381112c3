// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: those of chapter 04 are valid and as short as possible, and the check finds errors.
#include "04_pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "04_pipeline/support/check_schedule.h"

namespace workshop {
namespace {

std::vector<Schedule> all_schedules(int stages, int micro_batches) {
  std::vector<Schedule> schedules = {gpipe(stages, micro_batches), one_f_one_b(stages, micro_batches),
                                     zb_h1(stages, micro_batches)};
  for (int chunks = 1; chunks <= 3 && micro_batches % stages == 0; ++chunks) {
    schedules.push_back(interleaved(stages, micro_batches, chunks));
  }
  if (micro_batches >= 2 * stages) schedules.push_back(zb_v(stages, micro_batches));
  return schedules;
}

// Returns, for example, "F0 F1 B0 B1".
std::string order(const Schedule& schedule, int stage) {
  std::string text;
  for (const Instruction& i : schedule.lists[stage]) {
    if (!is_compute(i.kind)) continue;
    text += text.empty() ? "" : " ";
    text += "FBW"[i.kind];
    text += std::to_string(i.micro_batch);
    if (schedule.chunks > 1) text += static_cast<char>('a' + i.chunk);
  }
  return text;
}

int largest_in_flight(const Schedule& schedule, int stage) {
  int in_flight = 0, largest = 0;
  for (const Instruction& i : schedule.lists[stage]) {
    if (i.kind == Instruction::forward) largest = std::max(largest, ++in_flight);
    if (i.kind == (schedule.splits_backward ? Instruction::weights : Instruction::backward)) --in_flight;
  }
  return largest;
}

bool mentions(const std::vector<ScheduleError>& errors, const std::string& text) {
  return std::any_of(errors.begin(), errors.end(),
                     [&](const ScheduleError& e) { return e.what.find(text) != std::string::npos; });
}

// Returns the slots of the whole schedule, as math.md derives them. Those of ZB-H1 are right if the weights take
// neither longer than a forward nor than the rest of a backward, those of ZB-V if that rest takes at least as long as a
// forward and as the weights.
int shortest(const Schedule& s, const ScheduleSlots& slots) {
  if (s.name == "zb-v") {
    return 2 * s.micro_batches * (slots.forward + slots.backward + slots.weights) +
           (s.stages - 1) * (2 * slots.backward - slots.weights);
  }
  const int passes = slots.forward + slots.backward, filling = (s.stages - 1) * passes;
  if (!s.splits_backward) return s.chunks * s.micro_batches * passes + filling;
  const int put_off = (std::min(s.stages, s.micro_batches) - 1) * slots.weights;
  return s.micro_batches * (passes + slots.weights) + filling - put_off;
}

TEST(Schedule, AllAreValidAndAsShortAsPossible) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches : {1, 2, 3, 4, 7, 8, 16, 24}) {
      for (const Schedule& s : all_schedules(stages, micro_batches)) {
        SCOPED_TRACE(s.name + " " + std::to_string(stages) + " " + std::to_string(micro_batches));
        const std::vector<ScheduleError> errors = check_schedule(s);
        EXPECT_TRUE(errors.empty()) << chart_and_errors(s, errors);
        EXPECT_EQ(makespan(s), shortest(s, {}));
        for (int stage = 0; stage < stages; ++stage) {
          EXPECT_EQ(largest_in_flight(s, stage), s.in_flight[stage]);
        }
      }
    }
  }
}

TEST(Schedule, Orders) {
  EXPECT_EQ(order(gpipe(3, 3), 1), "F0 F1 F2 B2 B1 B0");
  const Schedule s = one_f_one_b(3, 4);
  EXPECT_EQ(order(s, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(order(s, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(order(s, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  const Schedule i = interleaved(2, 4, 2);
  EXPECT_EQ(order(i, 0), "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  EXPECT_EQ(order(i, 1), "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
}

// The order of 1F1B, in which stage s puts the weights off by s backwards.
TEST(Schedule, OrdersOfZbH1) {
  const Schedule s = zb_h1(4, 8);
  EXPECT_EQ(order(s, 0), "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7");
  EXPECT_EQ(order(s, 1), "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 B6 W5 B7 W6 W7");
  EXPECT_EQ(order(s, 2), "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7");
  EXPECT_EQ(order(s, 3), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7");
  EXPECT_EQ(makespan(s), 27);
  EXPECT_EQ(order(zb_h1(3, 2), 2), "F0 B0 F1 B1 W0 W1");
}

// Micro-batches are in flight from their forward to their weights: no stage has more than the first one of 1F1B.
TEST(Schedule, ZbH1IsAsShortAsItsFormulaInTheMemoryOf1F1B) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const Schedule s = zb_h1(stages, micro_batches);
      SCOPED_TRACE(std::to_string(stages) + " " + std::to_string(micro_batches));
      for (const ScheduleSlots slots :
           {ScheduleSlots{1, 1, 1}, {2, 2, 1}, {2, 3, 2}, {3, 2, 2}, {4, 5, 3}, {7, 5, 4}}) {
        EXPECT_EQ(makespan(s, slots), shortest(s, slots));
        const int passes = slots.forward + slots.backward;
        if (micro_batches < stages) continue;
        EXPECT_EQ(shortest(s, slots),
                  micro_batches * (passes + slots.weights) + (stages - 1) * (passes - slots.weights));
      }
      for (int stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(largest_in_flight(s, stage), one_f_one_b(stages, micro_batches).in_flight[0]);
        // The buffers of zero_bubble.md: inputs until the weights, and gradients from the backward to the weights.
        const auto buffers = [&](Instruction::Kind takes) {
          const std::vector<int> places = assign_buffers(s.lists[stage], micro_batches, 0, takes, Instruction::weights);
          return 1 + *std::max_element(places.begin(), places.end());
        };
        EXPECT_EQ(buffers(Instruction::receive_activation), stage == 0 ? 0 : std::min(micro_batches, stages + 1));
        EXPECT_EQ(buffers(Instruction::backward), std::min(micro_batches, stage + 1));
      }
    }
  }
}

// The warm-up of 2·(stages - 1 - stage) forwards; alternating forwards of both chunks; and so on (zero_bubble.md).
TEST(Schedule, OrdersOfZbV) {
  const Schedule s = zb_v(3, 6);
  EXPECT_EQ(s.placement, (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(
      order(s, 0),
      "F0a F1a F2a F3a F4a F0b B0b W0b F1b B1b W1b F2b B2b W2b F5a B0a W0a F3b B3b W3b B1a W1a F4b B4b W4b B2a W2a "
      "F5b B5b W5b B3a W3a B4a W4a B5a W5a");
  EXPECT_EQ(
      order(s, 2),
      "F0a F0b F1a F1b F2a F2b B0b W0b F3a B0a W0a F3b B1b W1b F4a B1a W1a F4b B2b W2b F5a B2a W2a F5b B3b B3a B4b "
      "W3b B4a W3a B5b W4b B5a W4a W5b W5a");
  EXPECT_EQ(makespan(s), 38);
}

// Two chunks per stage, each of half a stage: 2·stages forwards are as much as the first stage of 1F1B holds.
TEST(Schedule, ZbVIsAsShortAsItsFormulaInTheMemoryOf1F1B) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 2 * stages; micro_batches <= 24; ++micro_batches) {
      const Schedule s = zb_v(stages, micro_batches);
      SCOPED_TRACE(std::to_string(stages) + " " + std::to_string(micro_batches));
      for (const ScheduleSlots slots :
           {ScheduleSlots{1, 1, 1}, {2, 2, 1}, {2, 3, 2}, {2, 3, 3}, {1, 2, 1}, {4, 5, 3}, {5, 7, 4}, {10, 20, 1}}) {
        EXPECT_EQ(makespan(s, slots), shortest(s, slots)) << slots.forward << slots.backward << slots.weights;
      }
      for (int stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(largest_in_flight(s, stage), 2 * one_f_one_b(stages, micro_batches).in_flight[0]);
      }
    }
  }
}

// Weights that take longer than a forward, or than the rest of a backward, fill more than the idle time.
TEST(Schedule, ZbH1IsLongerThanItsFormulaIfTheWeightsTakeLonger) {
  const Schedule s = zb_h1(4, 8);
  EXPECT_GT(makespan(s, {1, 2, 2}), shortest(s, {1, 2, 2}));
  EXPECT_GT(makespan(s, {2, 1, 2}), shortest(s, {2, 1, 2}));
  EXPECT_GT(makespan(zb_v(4, 8), {2, 1, 1}), shortest(zb_v(4, 8), {2, 1, 1}));
}

TEST(Schedule, SendsGoWithTheNextReceive) {
  // In the steady state of a middle stage, activations and gradients alternate.
  const Schedule s = one_f_one_b(3, 4);
  const std::vector<Instruction> expected = {
      {Instruction::forward, 2},  {Instruction::send_activation, 2}, {Instruction::receive_activation, 3},
      {Instruction::backward, 1}, {Instruction::send_gradient, 1},   {Instruction::receive_gradient, 2}};
  const auto& list = s.lists[1];
  EXPECT_NE(std::search(list.begin(), list.end(), expected.begin(), expected.end()), list.end());
}

TEST(Schedule, BuffersAreSharedByThoseNotInFlight) {
  const Schedule s = one_f_one_b(4, 8);
  EXPECT_EQ(assign_buffers(s.lists[2], 8, 0, Instruction::forward, Instruction::backward),
            (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  // One input more than are in flight, because the next one is on its way.
  const std::vector<int> inputs =
      assign_buffers(s.lists[2], 8, 0, Instruction::receive_activation, Instruction::backward);
  EXPECT_EQ(*std::max_element(inputs.begin(), inputs.end()), 2);
  EXPECT_EQ(assign_buffers(s.lists[0], 8, 0, Instruction::receive_activation, Instruction::backward),
            std::vector<int>(8, -1));
}

// ---- tasks ---------------------------------------------------------------------------------------------------------

// Returns the tasks of a stage: "F0", "B1a", "W1"; "s0" and "r0" for activations sent and received, "S0" and "R0" for
// gradients; "U" for the update. Messages of a group have no space between them. A colon precedes what the task waits
// for.
std::string tasks_of(const Schedule& schedule, int stage) {
  std::string text;
  for (const Task& task : make_tasks(schedule, stage)) {
    text += text.empty() ? "" : " ";
    for (const Instruction& i : task.instructions) {
      text += "FBWsrSRU"[i.kind];
      if (i.kind != Instruction::update) text += std::to_string(i.micro_batch);
      if (schedule.chunks > 1) text += static_cast<char>('a' + i.chunk);
    }
    for (std::size_t n = 0; n < task.waits_for.size(); ++n) {
      text += (n == 0 ? ":" : ",") + std::to_string(task.waits_for[n]);
    }
  }
  return text;
}

TEST(Tasks, AreGroupedAndWaitForInputsAndForBuffersOfResults) {
  // The first of two stages: its forward passes need no input, but its third one waits for the message with the first
  // one's output.
  EXPECT_EQ(tasks_of(one_f_one_b(2, 4), 0), "F0 s0 F1 s1 R0 B0:4 R1 F2:1 s2 B1:6 R2 F3:3 s3 B2:10 R3 B3:14 U:12,14");
  EXPECT_EQ(tasks_of(one_f_one_b(2, 3), 1), "r0 F0:0 r1 B0 S0 F1:2 r2 B1 S1 F2:6 B2:4 S2 U:6,11");
}

TEST(Tasks, WeightsWaitForNothing) {
  EXPECT_EQ(tasks_of(zb_h1(2, 3), 0), "F0 s0 F1 s1 R0 B0:4 R1 W0 F2:1 s2 B1:6 R2 W1 B2:11 W2 U:9,11");
  EXPECT_EQ(tasks_of(zb_h1(2, 2), 1), "r0 F0:0 r1 B0 S0 F1:2 B1 S1 W0 W1 U:2,7");
}

TEST(Tasks, OfASingleStageWaitForNothing) { EXPECT_EQ(tasks_of(gpipe(1, 2), 0), "F0 F1 B1 B0 U"); }

// In any schedule, a task waits for groups before it, each forward and each backward pass for its input, and the update
// for all groups.
TEST(Tasks, WaitForAllThatTheyNeed) {
  for (const Schedule& s : all_schedules(4, 8)) {
    for (int stage = 0; stage < s.stages; ++stage) {
      SCOPED_TRACE(s.name + " stage " + std::to_string(stage));
      const std::vector<Task> tasks = make_tasks(s, stage);
      std::size_t instructions = 0;
      int last = -1;
      for (int t = 0; t < static_cast<int>(tasks.size()); ++t) {
        instructions += tasks[t].instructions.size();
        const Instruction& i = tasks[t].instructions[0];
        if (is_message(i.kind)) {
          EXPECT_TRUE(tasks[t].waits_for.empty()) << t;
          last = t;
        }
        for (int group : tasks[t].waits_for) {
          EXPECT_LT(group, t);
          EXPECT_TRUE(is_message(tasks[group].instructions[0].kind)) << t << " waits for " << group;
        }
        if (!is_compute(i.kind)) continue;
        EXPECT_TRUE(is_pass(i.kind) || tasks[t].waits_for.empty()) << t;
        if (const auto input = message(s, stage, i, /*input=*/true)) {
          const bool waits = std::any_of(tasks[t].waits_for.begin(), tasks[t].waits_for.end(), [&](int group) {
            const auto& messages = tasks[group].instructions;
            return std::find(messages.begin(), messages.end(), *input) != messages.end();
          });
          EXPECT_TRUE(waits) << t;
        }
      }
      EXPECT_EQ(instructions, s.lists[stage].size());
      EXPECT_EQ(tasks.back().instructions[0].kind, Instruction::update);
      EXPECT_EQ(std::count(tasks.back().waits_for.begin(), tasks.back().waits_for.end(), last), 1);
    }
  }
}

// ---- what is wrong is found ----------------------------------------------------------------------------------------

TEST(ScheduleCheck, FindsEveryInstructionThatIsMissingOrThereTwice) {
  for (const Schedule& right : all_schedules(2, 4)) {
    for (int stage = 0; stage < right.stages; ++stage) {
      for (std::size_t at = 0; at < right.lists[stage].size(); ++at) {
        Schedule less = right, more = right;
        less.lists[stage].erase(less.lists[stage].begin() + at);
        more.lists[stage].insert(more.lists[stage].begin() + at, right.lists[stage][at]);
        EXPECT_FALSE(check_schedule(less).empty()) << right.name << " without " << at;
        EXPECT_FALSE(check_schedule(more).empty()) << right.name << " with two " << at;
      }
    }
  }
}

// If any two instructions are swapped, either the check reports an error or the schedule runs to its end.
TEST(ScheduleCheck, LetsNothingThroughThatHangs) {
  for (const Schedule& right : all_schedules(2, 2)) {
    for (int stage = 0; stage < right.stages; ++stage) {
      for (std::size_t a = 0; a < right.lists[stage].size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
          Schedule s = right;
          std::swap(s.lists[stage][a], s.lists[stage][b]);
          if (!check_schedule(s).empty()) continue;
          for (const auto& times : ScheduleSimulation(s).times) {
            EXPECT_EQ(std::count(times.begin(), times.end(), -1), 0) << chart(s);
          }
        }
      }
    }
  }
}

TEST(ScheduleCheck, FindsAWarmUpThatIsTooLong) {
  Schedule s = one_f_one_b(2, 4);
  const std::vector<Instruction> order = {
      {Instruction::forward, 0}, {Instruction::forward, 1},  {Instruction::forward, 2},  {Instruction::backward, 0},
      {Instruction::forward, 3}, {Instruction::backward, 1}, {Instruction::backward, 2}, {Instruction::backward, 3}};
  s.lists[0] = connect(s, 0, order, 1);
  const std::vector<ScheduleError> errors = check_schedule(s);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].stage, 0);
  EXPECT_EQ(s.lists[0][errors[0].position], (Instruction{Instruction::forward, 2}));
  EXPECT_EQ(errors[0].what, "with forward 2 3 micro-batches are in flight; 1f1b has at most 2 here");
  EXPECT_NE(chart(s, errors).find(" F2! "), std::string::npos);
}

TEST(ScheduleCheck, FindsBackwardsBeforeTheirForwards) {
  Schedule s = gpipe(1, 2);
  s.lists[0] = {{Instruction::forward, 0},
                {Instruction::backward, 1},
                {Instruction::forward, 1},
                {Instruction::backward, 0},
                {Instruction::update}};
  EXPECT_TRUE(mentions(check_schedule(s), "backward 1 comes before the forward 1 that it needs"));
}

TEST(ScheduleCheck, FindsWeightsAtTheWrongPlace) {
  const auto errors = [](const std::vector<Instruction>& order) {
    Schedule s = zb_h1(1, 2);
    s.lists[0] = connect(s, 0, order, 1);
    return check_schedule(s);
  };
  const Instruction f0{Instruction::forward, 0}, b0{Instruction::backward, 0}, w0{Instruction::weights, 0};
  const Instruction f1{Instruction::forward, 1}, b1{Instruction::backward, 1}, w1{Instruction::weights, 1};
  EXPECT_TRUE(errors({f0, b0, w0, f1, b1, w1}).empty());
  EXPECT_TRUE(mentions(errors({f0, w0, b0, f1, b1, w1}), "weights 0 comes before the backward 0 that it needs"));
  EXPECT_TRUE(mentions(errors({f0, b0, w0, f1, b1}), "weights 1 is missing"));
  EXPECT_TRUE(mentions(errors({f0, b0, w0, f1, b1, w0}), "a second weights 0"));
  EXPECT_TRUE(mentions(errors({f0, b0, f1, b1, w0, w1}), "with forward 1 2 micro-batches are in flight"));
  Schedule s = one_f_one_b(1, 1);
  s.lists[0] = connect(s, 0, {f0, b0, w0}, 1);
  EXPECT_TRUE(mentions(check_schedule(s), "weights 0 is part of its backward"));
}

TEST(ScheduleCheck, FindsNumbersThatDoNotExist) {
  Schedule s = gpipe(2, 2);
  s.lists[1][1].micro_batch = 2;
  EXPECT_TRUE(mentions(check_schedule(s), "there is no micro-batch 2"));
  s.lists[1][1] = {Instruction::forward, 0, -1};
  EXPECT_TRUE(mentions(check_schedule(s), "there is no chunk -1"));
}

TEST(ScheduleCheck, FindsMessagesThatMeetTheWrongOnes) {
  Schedule s = gpipe(2, 2);
  s.lists[1] = connect(
      s, 1,
      {{Instruction::forward, 1}, {Instruction::forward, 0}, {Instruction::backward, 1}, {Instruction::backward, 0}},
      1);
  EXPECT_TRUE(mentions(check_schedule(s), "send_activation 0 meets receive_activation 1 of stage 1"));
}

TEST(ScheduleCheck, FindsAPlacementThatIsNone) {
  Schedule s = zb_v(2, 4);
  s.placement = {0, 1, 1, 1};
  EXPECT_TRUE(mentions(check_schedule(s), "holds 1 of 4 parts of the model, expected 2 of 4"));
  EXPECT_TRUE(mentions(check_schedule(s), "holds 3 of 4 parts"));
  s.placement = {0, 1, 5, -1};  // all are drawn, too
  EXPECT_NE(chart_and_errors(s, check_schedule(s)).find("a part is on stage 5, which does not exist"),
            std::string::npos);
}

// Each stage waits for a message that the other would send only after it has received.
TEST(ScheduleCheck, FindsADeadlock) {
  Schedule s = interleaved(2, 2, 2);
  for (int stage = 0; stage < s.stages; ++stage) {
    std::vector<Instruction>& list = s.lists[stage];
    for (std::size_t at = 1; at < list.size(); ++at) {
      if (joins_group(s, stage, list[at - 1], list[at])) std::swap(list[at - 1], list[at]);
    }
  }
  EXPECT_TRUE(mentions(check_schedule(s), "waits forever"));
  EXPECT_NE(chart(s).find('?'), std::string::npos);
}

}  // namespace
}  // namespace workshop
