// SPDX-License-Identifier: Apache-2.0
// Simulates how the executor would run a schedule, without a device: when is each instruction done?
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "04_pipeline/schedule.h"

namespace workshop {

// The slot after which each instruction is done, indexed by stage and place in its list. -1 for an instruction that
// waits forever.
using ScheduleTimes = std::vector<std::vector<int>>;

// How many slots a computation takes. Everything else takes no time.
struct ScheduleSlots {
  int forward = 1, backward = 1, weights = 1;

  int of(Instruction::Kind kind) const {
    return kind == Instruction::forward ? forward : kind == Instruction::backward ? backward : weights;
  }
};

// Each stage has a queue for what it computes and one for each channel, as in the executor, and each queue runs its
// groups of instructions one after the other. The first queue has groups of one instruction. The others start a group
// when everything computed before it in the list is done, and finish it when the other end of each of its messages has
// started too: a send waits for its receive.
class ScheduleSimulation {
 public:
  explicit ScheduleSimulation(const Schedule& schedule, const ScheduleSlots& slots = {})
      : schedule_(schedule), slots_(slots) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const std::vector<Instruction>& list = schedule.lists[stage];
      Stage& s = stages_.emplace_back();
      s.begun.assign(list.size(), -1);
      s.queues.resize(1 + channel_count(schedule));
      times.emplace_back(list.size(), -1);
      for (int at = 0; at < static_cast<int>(list.size()); ++at) {
        const std::size_t number = is_message(list[at].kind) ? 1 + channel_of(schedule, stage, list[at]) : 0;
        if (number >= s.queues.size()) s.queues.resize(number + 1);  // the placement is wrong
        Queue& queue = s.queues[number];
        const bool joins = at > 0 && joins_group(schedule, stage, list[at - 1], list[at]);
        if (!joins) queue.groups.emplace_back();
        queue.groups.back().push_back(at);
        if (is_message(list[at].kind)) s.messages[{list[at].kind, peer(schedule, stage, list[at])}].push_back(at);
      }
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (int stage = 0; stage < schedule.stages; ++stage) {
        progress |= compute(stage);
        for (std::size_t n = 1; n < stages_[stage].queues.size(); ++n) {
          progress |= exchange(stage, stages_[stage].queues[n]);
        }
      }
    }
  }

  ScheduleTimes times;

 private:
  struct Queue {
    std::vector<std::vector<int>> groups;  // places in the list
    std::size_t next = 0;                  // first group that is not done
    int time = 0;                          // when the group before it was done
  };
  struct Stage {
    std::vector<Queue> queues;  // what it computes, and the channels
    std::vector<int> begun;     // when a message's group started; -1: not yet
    std::map<std::pair<Instruction::Kind, int>, std::vector<int>> messages;  // places in the list, by kind and peer
  };

  // Returns when the place for the result of a pass is free, -1 if not yet. Results of a kind and a chunk alternate
  // between two places, so the last but one must have been sent. An output lies in its micro-batch's activations: if
  // these have been given back, the next forward may take them, so the last output must have been sent, too.
  int place_is_free(int stage, int at) const {
    const std::vector<Instruction>& list = schedule_.lists[stage];
    int earlier = 0, free = 0;
    std::vector<int> given_back;  // micro-batches of this chunk
    for (int before = at - 1; before >= 0 && earlier < 2; --before) {
      const Instruction& i = list[before];
      if (i.chunk != list[at].chunk) continue;
      if (i.kind == (schedule_.splits_backward ? Instruction::weights : Instruction::backward))
        given_back.push_back(i.micro_batch);
      if (i.kind != list[at].kind) continue;
      ++earlier;
      const bool taken_over =
          i.kind == Instruction::forward && std::ranges::find(given_back, i.micro_batch) != given_back.end();
      const bool sends = before + 1 < static_cast<int>(list.size()) && is_send(list[before + 1].kind);
      if (!(earlier == 2 || taken_over) || !sends) continue;
      if (times[stage][before + 1] < 0) return -1;
      free = std::max(free, times[stage][before + 1]);
    }
    return free;
  }

  // Runs the next instruction of the compute queue if its input is there, and a place for its result. Returns whether
  // it did.
  bool compute(int stage) {
    Stage& s = stages_[stage];
    Queue& queue = s.queues[0];
    if (queue.next == queue.groups.size()) return false;
    const int at = queue.groups[queue.next][0];
    const std::vector<Instruction>& list = schedule_.lists[stage];
    Instruction input = list[at];
    input.kind = input.kind == Instruction::forward ? Instruction::receive_activation : Instruction::receive_gradient;
    int begin = queue.time;
    if (is_pass(list[at].kind)) {
      const auto received = std::find(list.begin(), list.end(), input);
      if (received != list.end()) {
        const int arrived = times[stage][received - list.begin()];
        if (arrived < 0) return false;
        begin = std::max(begin, arrived);
      }
      const int free = place_is_free(stage, at);
      if (free < 0) return false;
      begin = std::max(begin, free);
    }
    if (is_compute(list[at].kind)) begin += slots_.of(list[at].kind);
    times[stage][at] = queue.time = begin;
    ++queue.next;
    return true;
  }

  // Starts or finishes the next group of messages if possible. Returns whether it did.
  bool exchange(int stage, Queue& queue) {
    if (queue.next == queue.groups.size()) return false;
    const std::vector<int>& group = queue.groups[queue.next];
    Stage& s = stages_[stage];
    if (s.begun[group[0]] < 0) {
      const Queue& computing = s.queues[0];
      if (computing.next < computing.groups.size() && computing.groups[computing.next][0] < group[0]) return false;
      int begin = queue.time;
      for (std::size_t done = 0; done < computing.next; ++done) {
        const int at = computing.groups[done][0];
        if (at < group[0]) begin = std::max(begin, times[stage][at]);
      }
      for (int at : group) s.begun[at] = begin;
      return true;
    }
    int end = s.begun[group[0]];
    for (int at : group) {
      const int other = other_half_begun(stage, at);
      if (other < 0) return false;
      end = std::max(end, other);
    }
    for (int at : group) times[stage][at] = end;
    queue.time = end;
    ++queue.next;
    return true;
  }

  // Returns when the other end of a message started, or -1. Between two ranks the n-th send meets the n-th receive,
  // even if they mean different micro-batches.
  int other_half_begun(int stage, int at) const {
    const Instruction& i = schedule_.lists[stage][at];
    const int other = peer(schedule_, stage, i);
    if (other < 0 || other >= schedule_.stages) return -1;  // the placement is wrong
    const std::vector<int>& mine = stages_[stage].messages.at({i.kind, other});
    const auto theirs = stages_[other].messages.find({other_half(i.kind), stage});
    const std::size_t n = std::find(mine.begin(), mine.end(), at) - mine.begin();
    if (theirs == stages_[other].messages.end() || n >= theirs->second.size()) return -1;
    return stages_[other].begun[theirs->second[n]];
  }

  const Schedule& schedule_;
  ScheduleSlots slots_;
  std::vector<Stage> stages_;
};

// Returns the number of slots that the whole schedule takes.
inline int makespan(const Schedule& schedule, const ScheduleSlots& slots = {}) {
  int last = 0;
  for (const auto& times : ScheduleSimulation(schedule, slots).times) {
    for (int time : times) last = std::max(last, time);
  }
  return last;
}

}  // namespace workshop
