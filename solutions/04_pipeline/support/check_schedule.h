// SPDX-License-Identifier: Apache-2.0
// Checks a schedule without a device, before any rank runs it: a wrong schedule would hang, or train wrongly.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "04_pipeline/schedule.h"
#include "04_pipeline/support/schedule_simulation.h"

namespace workshop {

// Returns "forward 3", or "forward 3 of chunk 1" if there are several chunks.
inline std::string describe(const Schedule& s, const Instruction& i) {
  static const char* const kNames[] = {
      "forward",       "backward",         "weights", "send_activation", "receive_activation",
      "send_gradient", "receive_gradient", "update"};
  if (i.kind == Instruction::update) return "update";
  return std::string(kNames[i.kind]) + " " + std::to_string(i.micro_batch) +
         (s.chunks > 1 ? " of chunk " + std::to_string(i.chunk) : "");
}

// Returns the kind of the instructions after which a micro-batch is no longer in flight.
inline Instruction::Kind last_use(const Schedule& s) {
  return s.splits_backward ? Instruction::weights : Instruction::backward;
}

// ---- checks --------------------------------------------------------------------------------------------------------

struct ScheduleError {
  int stage;
  int position;  // in the stage's list; the list's length if something is missing
  std::string what;
};

class ScheduleCheck {
 public:
  explicit ScheduleCheck(const Schedule& schedule) : schedule_(schedule) {}

  // Returns all errors, stage by stage; none for a schedule that the executor can run.
  std::vector<ScheduleError> run() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      check_placement(stage);
      if (std::ssize(schedule_.in_flight) <= stage) add(stage, 0, "has no limit of what may be in flight");
    }
    if (!errors_.empty()) return errors_;
    for (int stage = 0; stage < schedule_.stages; ++stage) check_indices(stage);
    if (!errors_.empty()) return errors_;  // the other checks use these indices
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      check_counts(stage);
      check_order(stage);
      check_partners(stage);
      check_in_flight(stage);
    }
    check_deadlock();
    return errors_;
  }

 private:
  using List = std::vector<Instruction>;

  void add(int stage, int position, const std::string& what) { errors_.push_back({stage, position, what}); }
  const List& list(int stage) const { return schedule_.lists[stage]; }
  int length(int stage) const { return static_cast<int>(list(stage).size()); }
  std::string describe(const Instruction& i) const { return workshop::describe(schedule_, i); }
  // Returns the first place of an instruction in the list, or the length of the list.
  int find(int stage, const Instruction& i) const {
    return static_cast<int>(std::find(list(stage).begin(), list(stage).end(), i) - list(stage).begin());
  }

  // Every stage must hold as many parts as it has chunks.
  void check_placement(int stage) {
    const auto& placement = schedule_.placement;
    const auto held = std::count(placement.begin(), placement.end(), stage);
    if (placement.empty() || (held == schedule_.chunks && std::ssize(placement) == schedule_.parts())) return;
    for (int number : placement) {
      if (number < 0 || number >= schedule_.stages) {
        return add(stage, 0, "a part is on stage " + std::to_string(number) + ", which does not exist");
      }
    }
    add(stage, 0,
        "holds " + std::to_string(held) + " of " + std::to_string(placement.size()) + " parts of the model, expected " +
            std::to_string(schedule_.chunks) + " of " + std::to_string(schedule_.parts()));
  }

  void check_indices(int stage) {
    for (int at = 0; at < length(stage); ++at) {
      const Instruction& i = list(stage)[at];
      if (i.micro_batch < 0 || i.micro_batch >= schedule_.micro_batches) {
        add(stage, at, "there is no micro-batch " + std::to_string(i.micro_batch));
      } else if (i.chunk < 0 || i.chunk >= schedule_.chunks) {
        add(stage, at, "there is no chunk " + std::to_string(i.chunk));
      }
    }
  }

  // Returns whether a stage needs this instruction: the ends of the model have no other stage to exchange messages
  // with.
  bool belongs(int stage, const Instruction& i) const {
    if (i.kind == Instruction::weights) return schedule_.splits_backward;
    const int part = schedule_.part(stage, i.chunk), last = schedule_.parts() - 1;
    if (i.kind == Instruction::receive_activation || i.kind == Instruction::send_gradient) return part > 0;
    if (i.kind == Instruction::send_activation || i.kind == Instruction::receive_gradient) return part < last;
    return true;
  }

  // Every instruction that belongs to a stage must be there exactly once.
  void check_counts(int stage) {
    for (int at = 0; at < length(stage); ++at) {
      const Instruction& i = list(stage)[at];
      if (!belongs(stage, i)) {
        add(stage, at,
            describe(i) + (is_message(i.kind) ? " has no stage at its other end" : " is part of its backward"));
      }
      if (find(stage, i) < at) add(stage, at, "a second " + describe(i));
    }
    for (int m = 0; m < schedule_.micro_batches; ++m) {
      for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
        for (int kind = Instruction::forward; kind < Instruction::update; ++kind) {
          const Instruction i{static_cast<Instruction::Kind>(kind), m, chunk};
          if (belongs(stage, i) && find(stage, i) == length(stage)) {
            add(stage, length(stage), describe(i) + " is missing");
          }
        }
      }
    }
    if (list(stage).empty() || list(stage).back().kind != Instruction::update) {
      add(stage, length(stage), "the list does not end with the update");
    }
  }

  // Within a list, each instruction must come after those that it needs.
  void check_order(int stage) {
    static constexpr std::pair<Instruction::Kind, Instruction::Kind> kBefore[] = {
        {Instruction::receive_activation, Instruction::forward}, {Instruction::forward, Instruction::send_activation},
        {Instruction::forward, Instruction::backward},           {Instruction::receive_gradient, Instruction::backward},
        {Instruction::backward, Instruction::send_gradient},     {Instruction::backward, Instruction::weights},
    };
    for (int at = 0; at < length(stage); ++at) {
      const Instruction& i = list(stage)[at];
      for (const auto& [before, after] : kBefore) {
        const int needed = find(stage, {before, i.micro_batch, i.chunk});
        if (i.kind != after || needed < at || needed == length(stage)) continue;
        add(stage, at, describe(i) + " comes before the " + describe(list(stage)[needed]) + " that it needs");
      }
      // A send must follow its computation directly, because there are only two buffers for results.
      const bool computed = at > 0 && is_pass(list(stage)[at - 1].kind);
      if (is_send(i.kind) &&
          !(computed && list(stage)[at - 1].micro_batch == i.micro_batch && list(stage)[at - 1].chunk == i.chunk)) {
        add(stage, at, describe(i) + " does not come right after what computes it");
      }
    }
  }

  // The n-th send to another stage meets that stage's n-th receive from this one. Both must mean the same micro-batch
  // and boundary.
  void check_partners(int stage) {
    for (Instruction::Kind kind : {Instruction::send_activation, Instruction::send_gradient}) {
      for (int other = 0; other < schedule_.stages; ++other) {
        const std::vector<int> sends = places(stage, kind, other), receives = places(other, other_half(kind), stage);
        for (std::size_t n = 0; n < std::min(sends.size(), receives.size()); ++n) {
          const Instruction &send = list(stage)[sends[n]], &receive = list(other)[receives[n]];
          if (send.micro_batch == receive.micro_batch &&
              other_part(schedule_, stage, send) == schedule_.part(other, receive.chunk)) {
            continue;
          }
          add(stage, sends[n], describe(send) + " meets " + describe(receive) + " of stage " + std::to_string(other));
          break;  // all later messages are then out of order too
        }
      }
    }
  }

  // Returns the places of a stage's messages of a kind that go to another stage or come from it.
  std::vector<int> places(int stage, Instruction::Kind kind, int other) const {
    std::vector<int> places;
    for (int at = 0; at < length(stage); ++at) {
      if (list(stage)[at].kind == kind && peer(schedule_, stage, list(stage)[at]) == other) places.push_back(at);
    }
    return places;
  }

  void check_in_flight(int stage) {
    int in_flight = 0;
    for (int at = 0; at < length(stage); ++at) {
      const Instruction& i = list(stage)[at];
      if (i.kind == Instruction::forward) ++in_flight;
      if (i.kind == last_use(schedule_)) --in_flight;
      if (in_flight <= schedule_.in_flight[stage]) continue;
      add(stage, at,
          "with " + describe(i) + " " + std::to_string(in_flight) + " micro-batches are in flight; " + schedule_.name +
              " has at most " + std::to_string(schedule_.in_flight[stage]) + " here");
      return;
    }
  }

  void check_deadlock() {
    const ScheduleSimulation simulation(schedule_);
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const auto& times = simulation.times[stage];
      const int at = static_cast<int>(std::find(times.begin(), times.end(), -1) - times.begin());
      if (at < length(stage)) add(stage, at, describe(list(stage)[at]) + " waits forever");
    }
  }

  const Schedule& schedule_;
  std::vector<ScheduleError> errors_;
};

// Returns all errors of a schedule; none for one that the executor can run.
inline std::vector<ScheduleError> check_schedule(const Schedule& schedule) { return ScheduleCheck(schedule).run(); }

// ---- chart ---------------------------------------------------------------------------------------------------------

// Returns a chart with one line per stage and one column per slot. F2 is the forward of micro-batch 2, B2 its backward,
// W2 the gradients of its weights, followed by a letter for the chunk if there are several. What takes several slots
// goes on with '='. A cell with an error ends with '!', one that waits forever with '?'. If a table places the parts,
// it is the first line.
inline std::string chart(const Schedule& s, const std::vector<ScheduleError>& errors = {},
                         const ScheduleSlots& lengths = {}) {
  const ScheduleTimes times = ScheduleSimulation(s, lengths).times;
  std::vector<std::map<int, std::string>> rows(s.lists.size());  // slot -> cell
  std::size_t slots = 0, width = 0;
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    int slot = -1;
    std::string* cell = nullptr;
    for (std::size_t at = 0; at < s.lists[stage].size(); ++at) {
      const Instruction& i = s.lists[stage][at];
      if (is_compute(i.kind)) {
        const int done = times[stage][at], length = lengths.of(i.kind);
        const int first = done > 0 ? done - length : slot + 1;
        slot = first + length - 1;
        for (int goes_on = first + 1; goes_on <= slot; ++goes_on) rows[stage][goes_on] = "=";
        cell = &rows[stage][first];
        *cell = "FBW"[i.kind];
        *cell += std::to_string(i.micro_batch);
        if (s.chunks > 1) *cell += static_cast<char>('a' + i.chunk);
        if (done < 0) *cell += '?';
      }
      for (const ScheduleError& e : errors) {
        const bool here = e.stage == static_cast<int>(stage) && e.position == static_cast<int>(at);
        if (here && cell != nullptr && cell->back() != '!') *cell += '!';
      }
      if (cell != nullptr) width = std::max(width, cell->size() + 1);
    }
    slots = std::max(slots, static_cast<std::size_t>(slot + 1));
  }
  std::string text;
  for (std::size_t part = 0; part < s.placement.size(); ++part) {
    text += (part == 0 ? "parts   | " : " ") + std::to_string(s.placement[part]);
  }
  if (!text.empty()) text += "\n";
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    text += "stage " + std::to_string(stage) + " |";
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const auto found = rows[stage].find(static_cast<int>(slot));
      const std::string cell = found == rows[stage].end() ? "." : found->second;
      text += std::string(width - std::min(width, cell.size()), ' ') + cell;
    }
    text += "\n";
  }
  return text;
}

// Returns the chart and one line per error.
inline std::string chart_and_errors(const Schedule& s, const std::vector<ScheduleError>& errors) {
  std::string text = chart(s, errors);
  for (const ScheduleError& e : errors) {
    text += "stage " + std::to_string(e.stage) + ", instruction " + std::to_string(e.position) + ": " + e.what + "\n";
  }
  return text;
}

}  // namespace workshop
