// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: a list of instructions for each stage, which carries them out one after the other.
//
// The model is cut into stages · chunks parts of consecutive layers. PipelineStage s holds the parts s, s + stages,
// s + 2·stages …, its chunks 0, 1, 2 …: with one chunk a stage holds one part. GPipe: Huang et al., NeurIPS 2019. 1F1B:
// Narayanan et al., SOSP 2019 and ICML 2021. Interleaved 1F1B: Narayanan et al. (Megatron-LM), SC 2021.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/record/record.h"

namespace workshop {

struct Instruction {
  enum Kind {
    forward,
    backward,
    send_activation,     // the output of the chunk, to the part above
    receive_activation,  // the input of the chunk, from the part below
    send_gradient,       // of the input, to the part below
    receive_gradient,    // of the output, from the part above
    update,              // of the parameters, once all gradients are there
  };
  Kind kind;
  int micro_batch = 0;
  int chunk = 0;  // of the stage
  bool operator==(const Instruction&) const = default;
};

struct Schedule {
  std::string name;
  int stages = 1, micro_batches = 1, chunks = 1;
  std::vector<int> in_flight;  // by stage: the most micro-batches, all chunks counted, that may wait for their backward
  std::vector<std::vector<Instruction>> lists;  // by stage

  int part(int stage, int chunk) const { return chunk * stages + stage; }
  int parts() const { return stages * chunks; }
};

inline bool is_compute(Instruction::Kind kind) { return kind == Instruction::forward || kind == Instruction::backward; }
inline bool is_send(Instruction::Kind kind) {
  return kind == Instruction::send_activation || kind == Instruction::send_gradient;
}
inline bool is_message(Instruction::Kind kind) { return !is_compute(kind) && kind != Instruction::update; }
inline bool is_activation(Instruction::Kind kind) {
  return kind == Instruction::send_activation || kind == Instruction::receive_activation;
}

// The stage that a message goes to or comes from. Stages are a ring: above the last one are the next chunks.
inline int peer(const Schedule& schedule, int stage, Instruction::Kind kind) {
  const bool above = kind == Instruction::send_activation || kind == Instruction::receive_gradient;
  return (stage + (above ? 1 : schedule.stages - 1)) % schedule.stages;
}

// A send and a receive of the same direction that follows it directly are one group: they begin together, and neither
// waits for the other. Every other send or receive is a group of its own.
inline bool joins_group(const Instruction& before, const Instruction& i) {
  return (before.kind == Instruction::send_activation && i.kind == Instruction::receive_activation) ||
         (before.kind == Instruction::send_gradient && i.kind == Instruction::receive_gradient);
}

// ---- sends and receives --------------------------------------------------------------------------------------------

// Returns the message with the input of a forward or a backward, or that with its result, unless this is an end of the
// model, where there is none.
inline std::optional<Instruction> message(const Schedule& schedule, int stage, const Instruction& i, bool input) {
  const bool forward = i.kind == Instruction::forward;
  const bool from_below = forward == input;  // inputs of forwards and gradients of inputs cross the lower boundary
  const int part = schedule.part(stage, i.chunk);
  if (part == (from_below ? 0 : schedule.parts() - 1)) return std::nullopt;
  const Instruction::Kind receive = forward ? Instruction::receive_activation : Instruction::receive_gradient;
  const Instruction::Kind send = forward ? Instruction::send_activation : Instruction::send_gradient;
  return Instruction{input ? receive : send, i.micro_batch, i.chunk};
}

// Inserts the sends: a result is sent as soon as it is computed.
inline std::vector<Instruction> insert_sends(const Schedule& schedule, int stage,
                                             const std::vector<Instruction>& order) {
  std::vector<Instruction> list;
  for (const Instruction& i : order) {
    list.push_back(i);
    if (const auto send = message(schedule, stage, i, /*input=*/false)) list.push_back(*send);
  }
  return list;
}

// Inserts the receives. After each forward or backward, in a group with its send, comes the receive for the next one of
// the same kind (for the one after that if `ahead` is 2): activations travel while the stage computes backwards,
// gradients while it computes forwards, and neither waits for the other. The first `ahead` receives come before the
// first forward or backward.
inline std::vector<Instruction> insert_receives(const Schedule& schedule, int stage,
                                                const std::vector<Instruction>& order, std::size_t ahead) {
  std::vector<Instruction> inputs[2], list;  // what the forwards and the backwards work on
  for (const Instruction& i : order) {
    if (is_compute(i.kind)) inputs[i.kind == Instruction::backward].push_back(i);
  }
  std::size_t received[2] = {0, 0}, computed[2] = {0, 0};
  const auto receive_up_to = [&](int kind, std::size_t count) {
    for (std::size_t& n = received[kind]; n < std::min(count, inputs[kind].size()); ++n) {
      if (const auto receive = message(schedule, stage, inputs[kind][n], /*input=*/true)) list.push_back(*receive);
    }
  };
  int kind = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (is_compute(order[at].kind)) {
      kind = order[at].kind == Instruction::backward;
      receive_up_to(kind, computed[kind]++ + ahead);
    }
    list.push_back(order[at]);
    const bool sends_next = at + 1 < order.size() && is_send(order[at + 1].kind);
    if (!sends_next) receive_up_to(kind, computed[kind] + ahead);
  }
  return list;
}

// Adds the messages to a stage's forwards and backwards, and the update at the end.
inline std::vector<Instruction> connect(const Schedule& schedule, int stage, const std::vector<Instruction>& order,
                                        int ahead) {
  std::vector<Instruction> list =
      insert_receives(schedule, stage, insert_sends(schedule, stage, order), static_cast<std::size_t>(ahead));
  list.push_back({Instruction::update});
  return list;
}

// ---- schedules -----------------------------------------------------------------------------------------------------

// Records the order of a stage: a forward as 1 + micro-batch + micro_batches · chunk, a backward as minus that, because
// zero has no sign.
inline void probe_order(const char* todo, const Schedule& s, int stage, const std::vector<Instruction>& order) {
  std::vector<int> numbers;
  for (const Instruction& i : order) {
    const int number = 1 + i.micro_batch + s.micro_batches * i.chunk;
    numbers.push_back(i.kind == Instruction::forward ? number : -number);
  }
  probe(todo, "order of stage " + std::to_string(stage) + ", micro-batches from 1, backwards negative", numbers);
}

// All forwards, then all backwards.
inline Schedule gpipe(int stages, int micro_batches) {
  Schedule s{"gpipe", stages, micro_batches, 1, std::vector<int>(stages, micro_batches), {}};
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<Instruction> order;
    // TODO 04.1: Append the forwards of all micro-batches to `order`, then their backwards, the last micro-batch first.
    //   order.push_back({Instruction::forward, m}) appends the forward of micro-batch m. All stages have the same
    //   order.
    todo("04.1");
    // END TODO 04.1
    probe_order("04.1", s, stage, order);
    // All inputs are kept until the backwards, so receiving one more ahead costs no memory, and hides the transfers.
    s.lists.push_back(connect(s, stage, order, /*ahead=*/2));
  }
  return s;
}

// One forward, one backward: a micro-batch's backward comes as early as it can.
inline Schedule one_f_one_b(int stages, int micro_batches) {
  Schedule s{"1f1b", stages, micro_batches, 1, {}, {}};
  for (int stage = 0; stage < stages; ++stage) {
    s.in_flight.push_back(std::min(micro_batches, stages - stage));
    std::vector<Instruction> order;
    // TODO 04.2: Append the order of `stage`: warm-up, then a forward and a backward in turns, then what is left.
    //   Forwards and backwards both go from micro-batch 0 up. How many forwards can a stage do before its first
    //   backward's gradient can be there, if each stage after it needs one of its own? The last stage does not warm up
    //   at all. There may be fewer micro-batches than that.
    todo("04.2");
    // END TODO 04.2
    probe_order("04.2", s, stage, order);
    s.lists.push_back(connect(s, stage, order, /*ahead=*/1));
  }
  return s;
}

// 1F1B with several chunks per stage. Groups of `stages` micro-batches take turns: each goes through chunk 0, then
// chunk 1 …, before the next group begins. `micro_batches` must be a multiple of `stages`.
inline Schedule interleaved(int stages, int micro_batches, int chunks) {
  Schedule s{"interleaved", stages, micro_batches, chunks, {}, {}};
  const int total = micro_batches * chunks;
  std::vector<Instruction> forwards, backwards;
  std::vector<int> numbers;
  for (int n = 0; n < total; ++n) {
    int micro_batch = 0, chunk = 0;
    // TODO 04.3: Which micro-batch and which chunk does the n-th forward of a stage (from 0) work on?
    //   With 3 stages and 2 chunks the micro-batches are 0 1 2 0 1 2 3 4 5 3 4 5 … and their chunks 0 0 0 1 1 1 0 0 0 1
    //   1 1 …: the same on every stage.
    todo("04.3");
    // END TODO 04.3
    numbers.insert(numbers.end(), {micro_batch, chunk});
    forwards.push_back({Instruction::forward, micro_batch, chunk});
    // The backwards go through the chunks the other way round.
    backwards.push_back({Instruction::backward, micro_batch, chunks - 1 - chunk});
  }
  probe("04.3", "micro-batch and chunk of each forward", numbers);
  for (int stage = 0; stage < stages; ++stage) {
    // The first backward is that of the last chunk, which the first group reaches after chunks - 1 rounds. Until its
    // gradient is back from the last stage and on, a stage above has two slots less to fill than the one below.
    const int warm_up = std::min(total, (chunks - 1) * stages + 2 * (stages - 1 - stage));
    s.in_flight.push_back(std::min(total, warm_up + 1));
    std::vector<Instruction> order(forwards.begin(), forwards.begin() + warm_up);
    for (int n = warm_up; n < total; ++n) {
      order.push_back(forwards[n]);
      order.push_back(backwards[n - warm_up]);
    }
    order.insert(order.end(), backwards.end() - warm_up, backwards.end());
    s.lists.push_back(connect(s, stage, order, /*ahead=*/1));
  }
  return s;
}

// ---- buffers -------------------------------------------------------------------------------------------------------

// Which of a pool of buffers each micro-batch of a chunk has, from the instruction that `takes` it to the one that
// `returns` it; -1 for a micro-batch that takes none.
inline std::vector<int> assign_buffers(const std::vector<Instruction>& list, int micro_batches, int chunk,
                                       Instruction::Kind takes, Instruction::Kind returns) {
  std::vector<int> buffer(micro_batches, -1);
  std::vector<bool> taken;  // of each buffer in the pool so far
  for (const Instruction& i : list) {
    const bool nothing_to_return = i.kind == returns && buffer[i.micro_batch] < 0;
    if (i.chunk != chunk || (i.kind != takes && i.kind != returns) || nothing_to_return) continue;
    // TODO 04.4: Take the lowest free buffer for micro-batch i.micro_batch, or give the one that it has back.
    //   i.kind says which. Where no buffer is free the pool grows: taken.push_back(true). Its size in the end is the
    //   largest number of micro-batches in flight: the memory that the schedule needs. buffer[m] keeps its number when
    //   it is given back, for this is the plan of a whole step: only `taken` changes then.
    todo("04.4");
    // END TODO 04.4
  }
  probe("04.4", "buffers of the micro-batches of chunk " + std::to_string(chunk), buffer);
  return buffer;
}

// ---- tasks ---------------------------------------------------------------------------------------------------------

// What a stage enqueues at once: a forward, a backward, the update, or a group of messages.
struct Task {
  std::vector<Instruction> instructions;  // all messages of a group; one instruction otherwise
  std::vector<int> waits_for;             // groups that must be over before it begins: their numbers among the tasks
};

// The numbers of the tasks, each once and in ascending order, that have one of these messages.
inline std::vector<int> groups_of(const std::vector<Task>& tasks,
                                  const std::vector<std::optional<Instruction>>& messages) {
  std::vector<int> groups;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const bool has_one =
        std::any_of(tasks[t].instructions.begin(), tasks[t].instructions.end(), [&](const Instruction& i) {
          return is_message(i.kind) && std::find(messages.begin(), messages.end(), i) != messages.end();
        });
    if (has_one) groups.push_back(static_cast<int>(t));
  }
  return groups;
}

// Returns the tasks of a stage, in the order of its list, and for each forward, each backward and the update the groups
// of messages that it waits for. Groups need no such list: each waits for all that is computed before it, and for the
// groups before it in its direction.
inline std::vector<Task> make_tasks(const Schedule& schedule, int stage) {
  std::vector<Task> tasks;
  for (const Instruction& i : schedule.lists[stage]) {
    const bool joins = !tasks.empty() && joins_group(tasks.back().instructions.back(), i);
    if (!joins) tasks.emplace_back();
    tasks.back().instructions.push_back(i);
  }

  std::map<std::pair<Instruction::Kind, int>, std::vector<Instruction>> computed;  // so far, by kind and chunk
  std::map<bool, int> last_group;  // so far, of the activations and of the gradients
  std::vector<int> waits;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Instruction& i = tasks[t].instructions[0];
    if (is_message(i.kind)) last_group[is_activation(i.kind)] = static_cast<int>(t);
    if (i.kind == Instruction::update) {  // the next step begins with all buffers free
      for (const auto& [activations, group] : last_group) tasks[t].waits_for.push_back(group);
    }
    if (!is_compute(i.kind)) continue;
    std::vector<Instruction>& earlier = computed[{i.kind, i.chunk}];
    std::vector<std::optional<Instruction>> messages;
    // TODO 04.5: Which messages must be over before i, a forward or a backward, may begin? Append them to `messages`.
    //   It needs its input. And its result goes to one of two buffers, which the results of a kind and a chunk have in
    //   turns: what was there must have been sent. `earlier` has the instructions of this kind and chunk before i, the
    //   newest last. message(schedule, stage, i, true) is the message with the input of an instruction, with false that
    //   with its result, and nothing where no other stage has the other end.
    todo("04.5");
    // END TODO 04.5
    earlier.push_back(i);
    tasks[t].waits_for = groups_of(tasks, messages);
    for (int group : tasks[t].waits_for) waits.insert(waits.end(), {static_cast<int>(t), group});
  }
  probe("04.5", "task and awaited group of each wait", waits);
  return tasks;
}

}  // namespace workshop
