// SPDX-License-Identifier: Apache-2.0
// Carries out the instructions of one stage: enqueues all of a step and waits for nothing.
//
// The stage computes on one stream. Activations travel on a second and gradients on a third, each with a communicator
// of its own, because a communicator carries out its operations one after the other: behind a receive that still waits
// for its gradient, no activation could leave. Events order the streams.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "03_model_parallel/idle_clock.h"
#include "common/device.h"
#include "common/group.h"
#include "common/job.h"
#include "stage.h"

namespace workshop {

class PipelineExecutor {
 public:
  // `stages` has one rank per stage, in their order; the stage is this rank's. The schedule must have passed
  // check_schedule.
  PipelineExecutor(const Schedule& schedule, Stage& stage, const Group& stages, cudaStream_t compute, IdleClock& clock)
      : schedule_(schedule),
        stage_(stage),
        compute_(compute),
        clock_(clock),
        rank_(stages.rank()),
        gradients_(stages.split(/*color=*/0, /*key=*/stages.rank(), "gradients")) {
    if (schedule.stages > 1 && schedule.name != "gpipe") refuse_launch_blocking("--schedule " + schedule.name);
    channels_[0].comm = stages.comm();
    channels_[1].comm = gradients_.comm();
    for (const Instruction& i : schedule.lists[rank_]) {
      const bool joins = !tasks_.empty() && joins_group(tasks_.back().instructions.back(), i);
      if (!joins) tasks_.emplace_back();
      tasks_.back().instructions.push_back(i);
    }
    std::map<std::pair<int, int>, std::vector<Instruction>> computed;  // of each kind and chunk
    for (Task& task : tasks_) {
      const Instruction& i = task.instructions[0];
      if (!is_compute(i.kind)) continue;
      std::vector<Instruction>& before = computed[{i.kind, i.chunk}];
      task.input = group_with(message(schedule, rank_, i, /*input=*/true));
      if (before.size() >= 2) task.result_before_last = group_with(message(schedule, rank_, before.end()[-2], false));
      before.push_back(i);
    }
  }
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  // Enqueues one step, on the batch of stage.begin_step(). Calls update(), for which the clock does not count, when all
  // gradients of the parameters are enqueued, and ready(chunk, layer) for each layer as soon as its are, which lets
  // their reduction over other ranks begin behind the last backwards.
  void step(const std::function<void()>& update, const std::function<void(int, int)>& ready = {}) {
    for (Channel& channel : channels_) channel.last = nullptr;
    for (Task& task : tasks_) {
      const Instruction& i = task.instructions[0];
      if (i.kind == Instruction::update) {
        for (const Channel& channel : channels_) compute_waits_for(channel.last);
        update();
      } else if (is_compute(i.kind)) {
        compute_waits_for(task.input);
        compute_waits_for(task.result_before_last);  // has left the buffer that this result goes to
        clock_.compute([&] { i.kind == Instruction::forward ? stage_.forward(i) : stage_.backward(i, ready); });
      } else {
        exchange(task);
      }
    }
  }

 private:
  // A forward, a backward, the update, or a group of messages.
  struct Task {
    std::vector<Instruction> instructions;
    Task* input = nullptr;               // the group that brings what a forward or a backward needs, if any
    Task* result_before_last = nullptr;  // the group that sends that result of the chunk: its buffer is used again
    Event done;                          // of a group
  };

  // The way of the activations, or of the gradients.
  struct Channel {
    Stream stream;
    ncclComm_t comm = nullptr;
    Task* last = nullptr;  // of its groups in this step
  };

  Task* group_with(const std::optional<Instruction>& message) {
    if (!message) return nullptr;
    const auto has_it = [&](const Task& task) {
      return std::find(task.instructions.begin(), task.instructions.end(), *message) != task.instructions.end();
    };
    const auto group = std::find_if(tasks_.begin(), tasks_.end(), has_it);
    return group != tasks_.end() ? &*group : nullptr;
  }

  void compute_waits_for(const Task* group) {
    if (group != nullptr) CUDA_CHECK(cudaStreamWaitEvent(compute_, group->done));
  }

  // Sends and receives the messages of a group, once what comes before them in the list is computed: then a send has
  // its data, and nothing reads any more what a receive overwrites.
  void exchange(Task& group) {
    Channel& channel = channels_[!is_activation(group.instructions[0].kind)];
    CUDA_CHECK(cudaEventRecord(computed_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(channel.stream, computed_));
    // TODO 04.7: Enqueue all messages of the group on channel.stream, with channel.comm: none may wait for another.
    //   Two neighbors that both send before they receive would wait for each other forever. What does a group of NCCL
    //   calls do about that (docs/calls.md)? For each i of group.instructions: is_send(i.kind), the rank
    //   peer(schedule_, rank_, i.kind), the numbers stage_.message(i), of type kReal, and how many there are,
    //   stage_.message_size(i).
    todo("04.7");
    // END TODO 04.7
    for (const Instruction& i : group.instructions) {
      if (is_send(i.kind)) continue;
      probe("04.7", "received micro-batch " + std::to_string(i.micro_batch), stage_.message(i),
            {stage_.message_size(i)}, channel.stream);
    }
    CUDA_CHECK(cudaEventRecord(group.done, channel.stream));
    channel.last = &group;
  }

  const Schedule& schedule_;
  Stage& stage_;
  cudaStream_t compute_;
  IdleClock& clock_;
  int rank_;
  Group gradients_;  // the stages again, with a communicator of their own
  Channel channels_[2] = {{Stream("activations")}, {Stream("gradients")}};
  std::vector<Task> tasks_;
  Event computed_;
};

}  // namespace workshop
