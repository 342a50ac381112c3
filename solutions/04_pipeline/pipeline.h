// SPDX-License-Identifier: Apache-2.0
// Runs the schedule of one stage: enqueues a whole step without waiting for anything.
//
// The stage computes on one stream. Activations travel on a second stream and gradients on a third, each with its own
// communicator: a communicator runs its operations one after the other, so an activation could not leave while a
// receive of a gradient is still waiting. If the parts are placed in a V (ZB-V), each of a stage's two chunks has two
// such streams of its own. Events order the streams.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "03_model_parallel/support/idle_clock.h"
#include "04_pipeline/schedule.h"
#include "04_pipeline/stage.h"
#include "common/device/device.h"
#include "common/job/job.h"
#include "common/nccl/group.h"
#include "common/nccl/off_the_record.h"

namespace workshop {

class PipelineExecutor {
 public:
  // `stages` has one rank per stage, in their order; `stage` belongs to this rank. The schedule must have passed
  // check_schedule().
  PipelineExecutor(const Schedule& schedule, PipelineStage& stage, const Group& stages, cudaStream_t compute,
                   IdleClock& clock)
      : schedule_(schedule),
        stage_(stage),
        compute_(compute),
        clock_(clock),
        rank_(stages.rank()),
        tasks_(make_tasks(schedule, rank_)),
        done_(tasks_.size()) {
    static constexpr const char* kNames[] = {"activations", "gradients", "activations of chunk 1",
                                             "gradients of chunk 1"};
    channels_.emplace_back(0, kNames[0], stages.comm());
    for (int n = 1; n < channel_count(schedule); ++n) {
      more_groups_.push_back(stages.split(/*color=*/0, /*key=*/rank_, kNames[n]));
      channels_.emplace_back(n, kNames[n], more_groups_.back().comm());
    }
    if (schedule.stages == 1 || schedule.name == "gpipe") return;
    // Neighbors launch activations and gradients in different orders. check_schedule() has shown that no stage waits
    // forever as long as a device can run one group of each at the same time.
    refuse_launch_blocking("--schedule " + schedule.name);
    for (Group& group : more_groups_) group.runs_beside_others();
    for (const Channel& channel : channels_) connect(channel);
  }
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  // Enqueues one step on the batch of stage.begin_step(). Calls ready(chunk, layer) as soon as the final gradients of a
  // layer are enqueued: in the chunk's last backward or, if the schedule splits backwards, in its last `weights`. So
  // the caller can average them over other ranks while the rest of the step runs. Calls update() once the gradients of
  // all layers are enqueued; the idle clock does not count update() as computing.
  void step(const std::function<void()>& update, const std::function<void(int, int)>& ready) {
    // WRITE 04.I: Enqueue the stage's tasks_, in their order.
    //   Pass a task that consists of messages, as is_message(kind) says, to exchange(task, channel). Activations and
    //   gradients have different channels: channels_[channel_of(schedule_, rank_, i)] is that of message i. Behind the
    //   exchange, record the event done_[t] of this task, the t-th, on the channel's stream. A forward, a backward and
    //   the update run on compute_. They must not start before the groups with the indices task.waits_for are done.
    //   Call stage_.forward(i), stage_.backward(i, ready) and, for an instruction of kind `weights`, stage_.weights(i,
    //   ready) each inside of clock_.compute([&] { … }), which measures the time, and update() outside of it. The host
    //   must not wait.
    for (std::size_t t = 0; t < tasks_.size(); ++t) {
      const Task& task = tasks_[t];
      const Instruction& i = task.instructions[0];
      if (is_message(i.kind)) {
        const Channel& channel = channels_[channel_of(schedule_, rank_, i)];
        exchange(task, channel);
        CUDA_CHECK(cudaEventRecord(done_[t], channel.stream));
        continue;
      }
      for (int group : task.waits_for) CUDA_CHECK(cudaStreamWaitEvent(compute_, done_[group]));
      if (i.kind == Instruction::forward) clock_.compute([&] { stage_.forward(i); });
      if (i.kind == Instruction::backward) clock_.compute([&] { stage_.backward(i, ready); });
      if (i.kind == Instruction::weights) clock_.compute([&] { stage_.weights(i, ready); });
      if (i.kind == Instruction::update) update();
    }
    // END WRITE 04.I
    if (probing()) probe_computed();
  }

 private:
  // What carries the activations, or the gradients; see channel_of().
  struct Channel {
    Channel(int number, const char* name, ncclComm_t comm) : number(number), stream(name), comm(comm) {}
    int number;
    Stream stream;
    ncclComm_t comm;
  };

  // Sends a number to each rank that gets messages of this channel. NCCL connects two ranks in the call of their first
  // message, and may wait for the device meanwhile. Within a step, that could hang: the device may be waiting for a
  // message that the other rank sends only after this first one.
  void connect(const Channel& channel) const {
    const OffTheRecord off_the_record;
    std::set<std::pair<Instruction::Kind, int>> connected;                      // kinds and peers
    const DeviceBuffer<Real> sent(1, Memory::data), received(4, Memory::data);  // two kinds from two neighbors
    CUDA_CHECK(cudaMemsetAsync(sent.data(), 0, sent.bytes(), channel.stream));
    NCCL_CHECK(ncclGroupStart());
    for (const Task& group : tasks_) {
      for (const Instruction& i : group.instructions) {
        if (!is_message(i.kind) || channel_of(schedule_, rank_, i) != channel.number) continue;
        const int other = peer(schedule_, rank_, i);
        if (!connected.insert({i.kind, other}).second) continue;
        if (is_send(i.kind)) {
          NCCL_CHECK(ncclSend(sent.data(), 1, kReal, other, channel.comm, channel.stream));
        } else {
          NCCL_CHECK(ncclRecv(received.data() + connected.size() - 1, 1, kReal, other, channel.comm, channel.stream));
        }
      }
    }
    NCCL_CHECK(ncclGroupEnd());
    channel.stream.synchronize();
  }

  // Enqueues the messages of a group, after everything that precedes them in the list is computed: only then is the
  // data of a send complete, and the buffer of a receive no longer read.
  void exchange(const Task& group, const Channel& channel) {
    if (probing()) probe_given(group, channel);
    // WRITE 04.J: Exchange all messages of the group over channel.comm, on channel.stream.
    //   They may start only when compute_ has done all that is enqueued on it by now: use the event computed_. No
    //   message may wait for another: two neighbors that both send before they receive would wait for each other
    //   forever. A message i of group.instructions is a send if is_send(i.kind), else a receive. Its buffer is
    //   stage_.message(i), with stage_.message_size(i) elements of type kReal; the other rank is peer(schedule_, rank_,
    //   i). Neither the host nor compute_ may wait.
    // TODO 04.7: Let channel.stream wait for compute_, and exchange all messages of the group there.
    //   Use the event computed_ for the wait. No message may wait for another: two neighbors that both send before they
    //   receive would wait for each other forever. What do NCCL's group calls do about that (docs/calls.md)? For each i
    //   of group.instructions, is_send(i.kind) says whether to send or to receive. The buffer is stage_.message(i),
    //   with stage_.message_size(i) elements of type kReal; the other rank is peer(schedule_, rank_, i); the
    //   communicator is channel.comm.
    CUDA_CHECK(cudaEventRecord(computed_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(channel.stream, computed_));
    NCCL_CHECK(ncclGroupStart());
    for (const Instruction& i : group.instructions) {
      const int other = peer(schedule_, rank_, i), count = stage_.message_size(i);
      if (is_send(i.kind)) {
        NCCL_CHECK(ncclSend(stage_.message(i), count, kReal, other, channel.comm, channel.stream));
      } else {
        NCCL_CHECK(ncclRecv(stage_.message(i), count, kReal, other, channel.comm, channel.stream));
      }
    }
    NCCL_CHECK(ncclGroupEnd());
    // END TODO 04.7
    // END WRITE 04.J
    probe("04.J", "messages exchanged", std::array{static_cast<int>(group.instructions.size())});
    for (const Instruction& i : group.instructions) {
      if (is_send(i.kind)) continue;
      probe("04.7", "received micro-batch " + std::to_string(i.micro_batch), stage_.message(i),
            {stage_.message_size(i)}, channel.stream);
    }
  }

  // ---- what the checker records ----

  void probe_computed() const {
    std::vector<int> computed;
    for (const ModelChunk& chunk : stage_.chunks()) {
      computed.insert(computed.end(), {chunk.forwards, chunk.backwards, chunk.weights});
    }
    probe("04.I", "forwards, backwards and weights of each chunk", computed);
    const int all = std::accumulate(computed.begin(), computed.end(), 0);
    probe("04.I", "1 if the clock counts all forwards and backwards", std::array{int{clock_.computations() >= all}});
  }

  // What step() passes on.
  void probe_given(const Task& group, const Channel& channel) const {
    std::vector<int> numbers;
    for (const Instruction& i : group.instructions) numbers.insert(numbers.end(), {i.kind, i.micro_batch, i.chunk});
    probe("04.J", "given to exchange: kind, micro-batch and chunk of each message", numbers);
    probe("04.J", "given to exchange: number of the channel", std::array{channel.number});
  }

  const Schedule& schedule_;
  PipelineStage& stage_;
  cudaStream_t compute_;
  IdleClock& clock_;
  int rank_;
  std::deque<Group> more_groups_;  // the same stages, with a communicator for each channel but the first
  std::deque<Channel> channels_;
  std::vector<Task> tasks_;
  std::vector<Event> done_;  // indexed by task; only those of groups of messages are recorded
  Event computed_;
};

}  // namespace workshop
