// SPDX-License-Identifier: Apache-2.0
// Carries out the schedule of one stage: enqueues all of a step and waits for nothing.
//
// The stage computes on one stream. Activations travel on a second and gradients on a third, each with a communicator
// of its own, because a communicator carries out its operations one after the other: behind a receive that still waits
// for its gradient, no activation could leave. Events order the streams.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "03_model_parallel/support/idle_clock.h"
#include "04_pipeline/schedule.h"
#include "04_pipeline/stage.h"
#include "common/device/device.h"
#include "common/job/job.h"
#include "common/nccl/group.h"

namespace workshop {

class PipelineExecutor {
 public:
  // `stages` has one rank per stage, in their order; `stage` is this rank's. The schedule must have passed
  // check_schedule().
  PipelineExecutor(const Schedule& schedule, PipelineStage& stage, const Group& stages, cudaStream_t compute,
                   IdleClock& clock)
      : schedule_(schedule),
        stage_(stage),
        compute_(compute),
        clock_(clock),
        rank_(stages.rank()),
        second_group_(stages.split(/*color=*/0, /*key=*/stages.rank(), "gradients")),
        activations_{Stream("activations"), stages.comm()},
        gradients_{Stream("gradients"), second_group_.comm()},
        tasks_(make_tasks(schedule, rank_)),
        done_(tasks_.size()) {
    if (schedule.stages > 1 && schedule.name != "gpipe") refuse_launch_blocking("--schedule " + schedule.name);
  }
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  // Enqueues one step, on the batch of stage.begin_step(). Calls update(), for which the clock does not count, when all
  // gradients of the parameters are enqueued, and ready(chunk, layer) for each layer as soon as its are, which lets
  // their reduction over other ranks begin behind the last backwards.
  void step(const std::function<void()>& update, const std::function<void(int, int)>& ready = {}) {
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const Task& task = tasks_[t];
      const Instruction& i = task.instructions[0];
      if (is_message(i.kind)) {
        exchange(task, is_activation(i.kind) ? activations_ : gradients_, done_[t]);
        continue;
      }
      for (int group : task.waits_for) CUDA_CHECK(cudaStreamWaitEvent(compute_, done_[group]));
      if (i.kind == Instruction::forward) clock_.compute([&] { stage_.forward(i); });
      if (i.kind == Instruction::backward) clock_.compute([&] { stage_.backward(i, ready); });
      if (i.kind == Instruction::update) update();
    }
  }

 private:
  // The way of the activations, or of the gradients.
  struct Channel {
    Stream stream;
    ncclComm_t comm;
  };

  // Sends and receives the messages of a group, once what comes before them in the list is computed: then a send has
  // its data, and nothing reads any more what a receive overwrites.
  void exchange(const Task& group, const Channel& channel, cudaEvent_t done) {
    // TODO 04.7: Let channel.stream wait for compute_, and exchange all messages of the group there.
    //   The event computed_ tells one stream how far the other has come. No message may wait for another: two neighbors
    //   that both send before they receive would wait for each other forever. What does a group of NCCL calls do about
    //   that (docs/calls.md)? For each i of group.instructions: is_send(i.kind), the rank peer(schedule_, rank_,
    //   i.kind), the numbers stage_.message(i), of type kReal, how many there are, stage_.message_size(i), and
    //   channel.comm.
    CUDA_CHECK(cudaEventRecord(computed_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(channel.stream, computed_));
    NCCL_CHECK(ncclGroupStart());
    for (const Instruction& i : group.instructions) {
      const int other = peer(schedule_, rank_, i.kind), count = stage_.message_size(i);
      if (is_send(i.kind)) {
        NCCL_CHECK(ncclSend(stage_.message(i), count, kReal, other, channel.comm, channel.stream));
      } else {
        NCCL_CHECK(ncclRecv(stage_.message(i), count, kReal, other, channel.comm, channel.stream));
      }
    }
    NCCL_CHECK(ncclGroupEnd());
    // END TODO 04.7
    for (const Instruction& i : group.instructions) {
      if (is_send(i.kind)) continue;
      probe("04.7", "received micro-batch " + std::to_string(i.micro_batch), stage_.message(i),
            {stage_.message_size(i)}, channel.stream);
    }
    CUDA_CHECK(cudaEventRecord(done, channel.stream));  // for the tasks that wait for this group
  }

  const Schedule& schedule_;
  PipelineStage& stage_;
  cudaStream_t compute_;
  IdleClock& clock_;
  int rank_;
  Group second_group_;  // the stages again, with a communicator for the gradients
  Channel activations_, gradients_;
  std::vector<Task> tasks_;
  std::vector<Event> done_;  // of each task; recorded behind groups
  Event computed_;
};

}  // namespace workshop
