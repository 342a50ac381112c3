// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules as data: one list of instructions per stage, which the stage runs in order.
//
// The model is cut into `stages` · `chunks` parts, each of consecutive layers. Part i is on stage i % stages, unless
// the table Schedule::placement says otherwise. The parts of a stage, in ascending order, are its chunks 0, 1, 2 …;
// with one chunk, each stage holds one part. GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al., SOSP 2019 and
// ICML 2021. Interleaved 1F1B: Narayanan et al. (Megatron-LM), SC 2021. ZB-H1 and ZB-V: Qi et al., ICLR 2024.
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
    backward,            // if the schedule splits it, without the gradients of the weights
    weights,             // the gradients of the weights, if the schedule splits backwards
    send_activation,     // the output of the chunk, to the part above
    receive_activation,  // the input of the chunk, from the part below
    send_gradient,       // the gradient of the input, to the part below
    receive_gradient,    // the gradient of the output, from the part above
    update,              // update the parameters; last in the list
  };
  Kind kind;
  int micro_batch = 0;
  int chunk = 0;  // one of the stage's chunks
  bool operator==(const Instruction&) const = default;
};

struct Schedule {
  std::string name;
  int stages = 1, micro_batches = 1, chunks = 1;
  // Indexed by stage: how many forwards, of all chunks together, may wait at the same time for their backward or, if it
  // is split, for their `weights`.
  std::vector<int> in_flight;
  std::vector<std::vector<Instruction>> lists;  // indexed by stage
  bool splits_backward = false;                 // each backward leaves the gradients of the weights to a `weights`
  std::vector<int> placement = {};  // indexed by part: the stage that holds it; if it is empty, part % stages

  int parts() const { return stages * chunks; }
  int stage_of(int part) const { return part < std::ssize(placement) ? placement[part] : part % stages; }
  // Returns the number of a part among the chunks of its stage.
  int chunk_of(int part) const {
    if (placement.empty()) return part / stages;
    int chunk = 0;
    for (int below = 0; below < part; ++below) chunk += stage_of(below) == stage_of(part);
    return chunk;
  }
  // Returns the part that is this chunk of the stage; -1 if the stage has no such chunk.
  int part(int stage, int chunk) const {
    if (placement.empty()) return chunk * stages + stage;
    for (int part = 0; part < parts(); ++part) {
      if (stage_of(part) == stage && chunk-- == 0) return part;
    }
    return -1;
  }
};

// Whether an instruction of this kind can need an input from another stage, or have a result for one.
inline bool is_pass(Instruction::Kind kind) { return kind == Instruction::forward || kind == Instruction::backward; }
inline bool is_compute(Instruction::Kind kind) { return is_pass(kind) || kind == Instruction::weights; }
inline bool is_send(Instruction::Kind kind) {
  return kind == Instruction::send_activation || kind == Instruction::send_gradient;
}
inline bool is_message(Instruction::Kind kind) { return !is_compute(kind) && kind != Instruction::update; }
inline bool is_activation(Instruction::Kind kind) {
  return kind == Instruction::send_activation || kind == Instruction::receive_activation;
}

// Returns the kind of a message at its other end.
inline Instruction::Kind other_half(Instruction::Kind message) {
  switch (message) {
    case Instruction::send_activation:
      return Instruction::receive_activation;
    case Instruction::receive_activation:
      return Instruction::send_activation;
    case Instruction::send_gradient:
      return Instruction::receive_gradient;
    default:
      return Instruction::send_gradient;
  }
}

// Returns the part at the other end of a message of this stage: the one above or the one below.
inline int other_part(const Schedule& schedule, int stage, const Instruction& message) {
  const bool above = message.kind == Instruction::send_activation || message.kind == Instruction::receive_gradient;
  const int parts = schedule.parts(), other = schedule.part(stage, message.chunk) + (above ? 1 : -1);
  return (other % parts + parts) % parts;  // in a wrong schedule, the ends of the model may have a message, too
}
// Returns the stage at the other end. It may be the stage itself, if that holds both parts.
inline int peer(const Schedule& schedule, int stage, const Instruction& message) {
  return schedule.stage_of(other_part(schedule, stage, message));
}

// The messages of a channel all go the same way, and one after the other: activations on one channel, gradients on
// another. If the table `placement` is set, each chunk has two channels of its own, because in a V the activations of
// the second chunks go the opposite way.
inline int channel_count(const Schedule& s) { return s.placement.empty() ? 2 : 2 * s.chunks; }
// Returns the channel of a chunk's activations, or of its gradients.
inline int channel_of(const Schedule& s, int chunk, bool gradients) {
  return int{gradients} + (s.placement.empty() ? 0 : 2 * chunk);
}
// Returns the channel of a message: that of the chunk below the boundary which it crosses.
inline int channel_of(const Schedule& s, int stage, const Instruction& message) {
  const int below = std::min(s.part(stage, message.chunk), other_part(s, stage, message));
  return channel_of(s, s.chunk_of(below), !is_activation(message.kind));
}

// A send and the receive right after it form one NCCL group if both are on the same channel: they start together, and
// neither waits for the other. Every other send or receive is a group of its own.
inline bool joins_group(const Schedule& s, int stage, const Instruction& before, const Instruction& i) {
  return is_send(before.kind) && is_message(i.kind) && !is_send(i.kind) &&
         channel_of(s, stage, before) == channel_of(s, stage, i);
}

// ---- sends and receives --------------------------------------------------------------------------------------------

// Returns the message that brings the input of a forward or a backward (`input`) or the one that carries its result
// away. Returns nothing at the ends of the model, where no other stage is involved, and for the gradients of weights,
// which stay here.
inline std::optional<Instruction> message(const Schedule& schedule, int stage, const Instruction& i, bool input) {
  if (!is_pass(i.kind)) return std::nullopt;
  const bool forward = i.kind == Instruction::forward;
  const bool from_below = forward == input;  // the message crosses the lower boundary of the part
  const int part = schedule.part(stage, i.chunk);
  if (part == (from_below ? 0 : schedule.parts() - 1)) return std::nullopt;
  const Instruction::Kind receive = forward ? Instruction::receive_activation : Instruction::receive_gradient;
  const Instruction::Kind send = forward ? Instruction::send_activation : Instruction::send_gradient;
  return Instruction{input ? receive : send, i.micro_batch, i.chunk};
}

// Inserts the sends, each right after the forward or backward that computes what it sends. If this stage also holds the
// part that receives, the receive comes right behind the send: with NCCL, a rank can send to itself only within a
// group.
inline std::vector<Instruction> insert_sends(const Schedule& schedule, int stage,
                                             const std::vector<Instruction>& order) {
  std::vector<Instruction> list;
  for (const Instruction& i : order) {
    list.push_back(i);
    const auto send = message(schedule, stage, i, /*input=*/false);
    if (!send) continue;
    list.push_back(*send);
    if (peer(schedule, stage, *send) != stage) continue;
    list.push_back({other_half(send->kind), i.micro_batch, schedule.chunk_of(other_part(schedule, stage, *send))});
  }
  return list;
}

// Inserts the receives. The receive for the n-th forward is in a group with the send after forward n - `ahead`; the
// same holds for backwards. So activations travel while the stage computes backwards, gradients while it computes
// forwards, and neither waits for the other. The first `ahead` receives of a kind come before its first forward or
// backward. If chunks have channels of their own, n counts within each chunk.
inline std::vector<Instruction> insert_receives(const Schedule& schedule, int stage,
                                                const std::vector<Instruction>& order, std::size_t ahead) {
  struct Inputs {
    std::vector<Instruction> of;  // the forwards or backwards that need them
    std::size_t received = 0, computed = 0;
  };
  std::vector<Inputs> all(channel_count(schedule));
  const auto inputs_of = [&](const Instruction& pass) -> Inputs& {
    return all[channel_of(schedule, pass.chunk, pass.kind == Instruction::backward)];
  };
  for (const Instruction& i : order) {
    if (is_pass(i.kind)) inputs_of(i).of.push_back(i);
  }
  std::vector<Instruction> list;
  const auto receive_up_to = [&](Inputs& inputs, std::size_t count) {
    for (std::size_t& n = inputs.received; n < std::min(count, inputs.of.size()); ++n) {
      const auto receive = message(schedule, stage, inputs.of[n], /*input=*/true);
      if (receive && peer(schedule, stage, *receive) != stage) list.push_back(*receive);
    }
  };
  Inputs* inputs = nullptr;  // of the last forward or backward
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (is_pass(order[at].kind)) {
      inputs = &inputs_of(order[at]);
      receive_up_to(*inputs, inputs->computed++ + ahead);
    }
    list.push_back(order[at]);
    const bool message_next = at + 1 < order.size() && is_message(order[at + 1].kind);
    if (inputs != nullptr && !message_next) receive_up_to(*inputs, inputs->computed + ahead);
  }
  return list;
}

// Returns the list of a stage: its computations in the given order, its messages, and the update at the end.
inline std::vector<Instruction> connect(const Schedule& schedule, int stage, const std::vector<Instruction>& order,
                                        int ahead) {
  std::vector<Instruction> list =
      insert_receives(schedule, stage, insert_sends(schedule, stage, order), static_cast<std::size_t>(ahead));
  list.push_back({Instruction::update});
  return list;
}

// ---- schedules -----------------------------------------------------------------------------------------------------

// Records the order of each stage for the checker: a forward as 1 + micro-batch + micro_batches · chunk, a backward as
// minus that. Numbers start at 1 because 0 has no sign.
inline void probe_orders(const char* todo, const Schedule& s) {
  for (std::size_t stage = 0; stage < s.lists.size(); ++stage) {
    std::vector<int> numbers;
    for (const Instruction& i : s.lists[stage]) {
      if (!is_pass(i.kind)) continue;
      const int number = 1 + i.micro_batch + s.micro_batches * i.chunk;
      numbers.push_back(i.kind == Instruction::forward ? number : -number);
    }
    probe(todo, "order of stage " + std::to_string(stage) + ", micro-batches from 1, backwards negative", numbers);
  }
}

// Records the order of each stage with its gradients of weights.
inline void probe_split_orders(const char* todo, const Schedule& s) {
  const std::string of_each =
      std::string(s.chunks > 1 ? ", micro-batch and chunk" : " and micro-batch") + " of each computation";
  for (std::size_t stage = 0; stage < s.lists.size(); ++stage) {
    std::vector<int> numbers;
    for (const Instruction& i : s.lists[stage]) {
      if (!is_compute(i.kind)) continue;
      numbers.insert(numbers.end(), {i.kind, i.micro_batch});
      if (s.chunks > 1) numbers.push_back(i.chunk);
    }
    probe(todo, "stage " + std::to_string(stage) + ": kind (F 0; B 1; W 2)" + of_each, numbers);
  }
}

// Records the forwards of stage 0, in their order, which is that of all stages.
inline void probe_forwards(const char* todo, const Schedule& s) {
  std::vector<int> numbers;
  for (const Instruction& i : s.lists.empty() ? std::vector<Instruction>() : s.lists[0]) {
    if (i.kind == Instruction::forward) numbers.insert(numbers.end(), {i.micro_batch, i.chunk});
  }
  probe(todo, "micro-batch and chunk of each forward", numbers);
}

// Records what else a schedule has: its limits, and where the messages are.
inline void probe_rest(const char* region, const Schedule& s) {
  probe(region, "most micro-batches in flight of each stage", s.in_flight);
  for (std::size_t stage = 0; stage < s.lists.size(); ++stage) {
    std::vector<int> before;
    int messages = 0;
    for (const Instruction& i : s.lists[stage]) {
      if (is_message(i.kind)) {
        ++messages;
      } else {
        before.push_back(messages);
      }
    }
    probe(region, "messages before the n-th computation of stage " + std::to_string(stage), before);
  }
}

// GPipe: all forwards, then all backwards.
inline Schedule gpipe(int stages, int micro_batches) {
  Schedule s{"gpipe", stages, micro_batches, 1, std::vector<int>(stages, micro_batches), {}};
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<Instruction> order;
    // TODO 04.1: Append the forwards of all micro-batches to `order`, then their backwards, the last micro-batch first.
    //   order.push_back({Instruction::forward, m}) appends the forward of micro-batch m. The order is the same on all
    //   stages.
    todo("04.1");
    // END TODO 04.1
    // Receiving two ahead hides the transfers. All inputs are kept until their backwards anyway, so this takes only one
    // more buffer, for a gradient.
    s.lists.push_back(connect(s, stage, order, /*ahead=*/2));
  }
  return s;
}

// 1F1B, one forward, one backward: each micro-batch's backward comes as early as possible.
inline Schedule one_f_one_b(int stages, int micro_batches) {
  Schedule s{"1f1b", stages, micro_batches, 1, {}, {}};
  for (int stage = 0; stage < stages; ++stage) {
    s.in_flight.push_back(std::min(micro_batches, stages - stage));
    std::vector<Instruction> order;
    // TODO 04.2: Append the order of `stage`: warm-up, then forwards and backwards alternately, then what is left.
    //   Both forwards and backwards start with micro-batch 0 and count up. Each stage after this one needs a forward of
    //   its own before the first gradient can come back: how many forwards must this stage do before it can alternate?
    //   The last stage does not warm up at all. There may be fewer micro-batches than warm-up forwards.
    todo("04.2");
    // END TODO 04.2
    s.lists.push_back(connect(s, stage, order, /*ahead=*/1));
  }
  return s;
}

// 1F1B with several chunks per stage. Each group of `stages` micro-batches goes through chunk 0, then chunk 1 …, before
// the next group starts. `micro_batches` must be a multiple of `stages`.
inline Schedule interleaved(int stages, int micro_batches, int chunks) {
  Schedule s{"interleaved", stages, micro_batches, chunks, {}, {}};
  const int total = micro_batches * chunks;
  std::vector<Instruction> forwards, backwards;
  for (int n = 0; n < total; ++n) {
    int micro_batch = 0, chunk = 0;
    // TODO 04.3: Which micro-batch and which chunk does the n-th forward of a stage (from 0) work on?
    //   Set `micro_batch` and `chunk`. With 3 stages and 2 chunks, the micro-batches are 0 1 2 0 1 2 3 4 5 3 4 5 … and
    //   the chunks 0 0 0 1 1 1 0 0 0 1 1 1 …, on every stage.
    todo("04.3");
    // END TODO 04.3
    forwards.push_back({Instruction::forward, micro_batch, chunk});
    // The backwards go through the chunks in reverse order.
    backwards.push_back({Instruction::backward, micro_batch, chunks - 1 - chunk});
  }
  for (int stage = 0; stage < stages; ++stage) {
    // The first backward belongs to the last chunk, which the first group reaches after chunks - 1 rounds of `stages`
    // forwards. Each stage after this one delays the gradient that this stage waits for by two more slots: one on the
    // way up, one on the way down.
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

// ZB-H1, the zero-bubble schedule that holds no more micro-batches than 1F1B: a stage sends the gradient of its input
// before it computes those of its weights, and it puts the weights off.
inline Schedule zb_h1(int stages, int micro_batches) {
  Schedule s{"zb-h1", stages, micro_batches, 1, {}, {}, /*splits_backward=*/true};
  for (int stage = 0; stage < stages; ++stage) {
    s.in_flight.push_back(std::min(micro_batches, stages));
    std::vector<Instruction> order;
    // TODO 04.8: Append the order of `stage`: the forwards and backwards of 1F1B, and the weights of each micro-batch.
    //   No other stage waits for the weights, but a stage holds a micro-batch until they are computed. In 1F1B, stage s
    //   holds s micro-batches less than the first stage. So it can put the weights off by s backwards: those of
    //   micro-batch m come right after the backward of micro-batch m + s. Then its last backward, for which all stages
    //   before it wait, comes sooner. Behind the last backward come the weights that are left, in the order of the
    //   micro-batches. There may be fewer micro-batches than stages. order.push_back({Instruction::weights, m}) appends
    //   those of micro-batch m.
    todo("04.8");
    // END TODO 04.8
    s.lists.push_back(connect(s, stage, order, /*ahead=*/1));
  }
  return s;
}

// ZB-V: zero bubble with two chunks per stage, which are placed in a V: a micro-batch goes through the first chunks
// from the first stage to the last, and through the second ones back. `micro_batches` must be at least twice `stages`.
inline Schedule zb_v(int stages, int micro_batches) {
  Schedule s{"zb-v", stages, micro_batches, 2, {}, {}, /*splits_backward=*/true};
  for (int part = 0; part < s.parts(); ++part) {
    int holder = 0;
    // TODO 04.11: Set `holder` to the stage that holds this part.
    //   The parts go from stage 0 to the last stage, and back to stage 0. There are `stages` stages and s.parts()
    //   parts, two on each stage.
    todo("04.11");
    // END TODO 04.11
    s.placement.push_back(holder);
  }
  for (int stage = 0; stage < stages; ++stage) {
    s.in_flight.push_back(2 * stages);
    std::vector<Instruction> order, left;           // left: weights that are put off
    int forwards[] = {0, 0}, backwards[] = {0, 0};  // so far, by chunk
    const auto forward = [&](int chunk) { order.push_back({Instruction::forward, forwards[chunk]++, chunk}); };
    const auto backward = [&](int chunk, int put_off) {
      const int m = backwards[chunk]++;
      order.push_back({Instruction::backward, m, chunk});
      left.push_back({Instruction::weights, m, chunk});
      if (static_cast<int>(left.size()) <= put_off) return;
      order.push_back(left.front());
      left.erase(left.begin());
    };
    // TODO 04.12: Append the order of `stage`, with forward(chunk) and backward(chunk, put_off).
    //   forward() appends the chunk's next forward and counts it in forwards[chunk]. backward() appends the chunk's
    //   next backward and counts it in backwards[chunk]. Behind that it appends the oldest weights, if more than
    //   `put_off` are left; with 0, each backward is followed by its own weights. Put off nothing in the first four
    //   phases:
    //   1. Forwards of chunk 0, until micro-batch 0 comes back. It needs two forwards on each stage behind this one.
    //   2. Forwards of chunk 0 and of chunk 1, alternating, stage + 1 of each.
    //   3. Backwards and forwards of chunk 1, alternating, as many of each as there are stages behind this one.
    //   4. As long as chunk 1 has forwards left: its next backward, a forward of chunk 0 if there is one left, a
    //      backward of chunk 0, and the forward of chunk 1.
    //   5. The backwards that are left: of chunk 1 and of chunk 0, alternating, then the rest of chunk 0. The other
    //      stages wait for them. So put the weights off, by `stage`. No forward follows that would need their memory.
    //   The weights that are left in the end are appended below.
    todo("04.12");
    // END TODO 04.12
    order.insert(order.end(), left.begin(), left.end());
    s.lists.push_back(connect(s, stage, order, /*ahead=*/1));
  }
  return s;
}

// Records a schedule for the checker. Not in the functions above, because one may call another.
inline void probe_schedule(const std::string& name, const Schedule& s) {
  if (name == "gpipe") {
    probe_orders("04.1", s);
    probe_rest("04.A", s);
  } else if (name == "1f1b") {
    probe_orders("04.2", s);
    probe_rest("04.B", s);
  } else if (name == "interleaved") {
    probe_forwards("04.3", s);
    probe_orders("04.C", s);
    probe_rest("04.C", s);
  } else if (name == "zb-h1") {
    probe_split_orders("04.8", s);
    probe_rest("04.K", s);
  } else {
    probe("04.11", "stage that holds each part", s.placement);
    probe_split_orders("04.12", s);
    probe_rest("04.M", s);
  }
}

// ---- buffers -------------------------------------------------------------------------------------------------------

// Assigns buffers of a pool to the micro-batches of a chunk. A micro-batch holds its buffer from the instruction of
// kind `takes` to the one of kind `returns`. Returns the buffer number of each micro-batch; -1 if it needs none.
inline std::vector<int> assign_buffers(const std::vector<Instruction>& list, int micro_batches, int chunk,
                                       Instruction::Kind takes, Instruction::Kind returns) {
  std::vector<int> buffer(micro_batches, -1);
  std::vector<bool> taken;  // indexed by buffer; its size is the size of the pool
  for (const Instruction& i : list) {
    const bool nothing_to_return = i.kind == returns && buffer[i.micro_batch] < 0;
    if (i.chunk != chunk || (i.kind != takes && i.kind != returns) || nothing_to_return) continue;
    // TODO 04.4: Take the lowest free buffer for micro-batch i.micro_batch, or give its buffer back.
    //   i.kind says which of the two. If no buffer is free, let the pool grow: taken.push_back(true). Its final size is
    //   the largest number of micro-batches in flight, and so the memory that the schedule needs. When a buffer is
    //   given back, change only `taken`: buffer[m] keeps the number, because it is the plan for the whole step.
    todo("04.4");
    // END TODO 04.4
  }
  probe("04.4", "buffers of the micro-batches of chunk " + std::to_string(chunk), buffer);
  return buffer;
}

// ---- tasks ---------------------------------------------------------------------------------------------------------

// What a stage enqueues in one go: a forward, a backward, weights, the update, or a group of messages.
struct Task {
  std::vector<Instruction> instructions;  // all messages of the group, or one instruction
  std::vector<int> waits_for;             // indices of the tasks (groups of messages) that must be done before this one
};

// Returns the indices of the tasks that contain any of these messages, in ascending order, each once.
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

// Records the tasks for the checker.
inline void probe_tasks(const std::vector<Task>& tasks) {
  std::vector<int> sizes, waits, last_waits;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    sizes.push_back(static_cast<int>(tasks[t].instructions.size()));
    const bool computes = !tasks[t].instructions.empty() && is_compute(tasks[t].instructions[0].kind);
    std::vector<int> groups = tasks[t].waits_for;
    std::sort(groups.begin(), groups.end());
    for (int group : groups) {
      if (computes) waits.push_back(static_cast<int>(t));
      (computes ? waits : last_waits).push_back(group);
    }
  }
  probe("04.E", "instructions of each task", sizes);
  probe("04.5", "task and awaited group of each wait", waits);
  probe("04.E", "groups that the update waits for", last_waits);
}

// If a chunk is done with a micro-batch before its next forward, as can happen in a schedule of one's own, that forward
// may take over the micro-batch's buffers. Makes it wait until the micro-batch's output has been sent.
inline void wait_for_only_output(std::vector<Task>& tasks, const Schedule& schedule, int stage) {
  const Instruction::Kind last = schedule.splits_backward ? Instruction::weights : Instruction::backward;
  std::map<int, std::pair<Instruction, bool>> before;  // by chunk: its last forward, and whether it is still held
  for (Task& task : tasks) {
    const Instruction& i = task.instructions[0];
    const auto forward = before.find(i.chunk);
    if (i.kind == last && forward != before.end() && forward->second.first.micro_batch == i.micro_batch) {
      forward->second.second = false;
    }
    if (i.kind != Instruction::forward) continue;
    if (forward != before.end() && !forward->second.second) {
      for (int group : groups_of(tasks, {message(schedule, stage, forward->second.first, /*input=*/false)})) {
        if (std::ranges::find(task.waits_for, group) == task.waits_for.end()) task.waits_for.push_back(group);
      }
    }
    before[i.chunk] = {i, true};
  }
}

// Returns the tasks of a stage, in the order of its list. Each forward, each backward and the update also gets the
// groups of messages that it waits for. A group of messages needs no such list: it waits for everything computed before
// it, and the stream of a channel runs its groups one after the other.
inline std::vector<Task> make_tasks(const Schedule& schedule, int stage) {
  std::vector<Task> tasks;
  for (const Instruction& i : schedule.lists[stage]) {
    const bool joins = !tasks.empty() && joins_group(schedule, stage, tasks.back().instructions.back(), i);
    if (!joins) tasks.emplace_back();
    tasks.back().instructions.push_back(i);
  }

  std::map<std::pair<Instruction::Kind, int>, std::vector<Instruction>> computed;  // so far, by kind and chunk
  std::map<int, int> last_group;  // the latest group of messages, by channel
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Instruction& i = tasks[t].instructions[0];
    if (is_message(i.kind)) last_group[channel_of(schedule, stage, i)] = static_cast<int>(t);
    if (i.kind == Instruction::update) {  // waits for all messages, so the next step starts with all buffers free
      for (const auto& [channel, group] : last_group) tasks[t].waits_for.push_back(group);
    }
    if (!is_compute(i.kind)) continue;
    std::vector<Instruction>& earlier = computed[{i.kind, i.chunk}];
    std::vector<std::optional<Instruction>> messages;
    // TODO 04.5: Append to `messages` the messages that must be done before i, a forward or a backward, may start.
    //   i needs its input. Its result goes into one of two buffers. The results of the same kind and chunk alternate
    //   between them: the earlier result in this buffer must have been sent. i waits for nothing else. `earlier` holds
    //   the instructions of this kind and chunk before i, the newest last. message(schedule, stage, i, true) returns
    //   the message that brings the input of an instruction; with `false`, the one that carries its result away. Where
    //   no other stage is involved, it returns std::nullopt, which you may append, too.
    todo("04.5");
    // END TODO 04.5
    earlier.push_back(i);
    tasks[t].waits_for = groups_of(tasks, messages);
  }
  probe_tasks(tasks);
  wait_for_only_output(tasks, schedule, stage);
  return tasks;
}

}  // namespace workshop
