// Carries out the instructions of one stage: enqueues all of a step and waits for nothing.
//
// The stage computes on one stream. Activations travel on a second and gradients on a third, each with a communicator
// of its own, because a communicator carries out its operations one after the other: behind a receive that still waits
// for its gradient, no activation could leave. Events order the streams.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "common/device.h"
#include "common/job.h"
#include "common/record.h"
#include "idle_clock.h"
#include "stage.h"

namespace workshop {

template <typename Model>
class PipelineExecutorOf {
 public:
  // `comm` has one rank a stage, in their order; the stage is this rank's. The schedule must have passed
  // check_schedule.
  PipelineExecutorOf(const Schedule& schedule, StageOf<Model>& stage, ncclComm_t comm, cudaStream_t compute,
                     IdleClock& clock)
      : schedule_(schedule), stage_(stage), compute_(compute), clock_(clock) {
    if (schedule.stages > 1 && schedule.name != "gpipe") refuse_launch_blocking("--schedule " + schedule.name);
    NCCL_CHECK(ncclCommUserRank(comm, &rank_));
    links_[0].comm = comm;
    NCCL_CHECK(ncclCommSplit(comm, /*color=*/0, /*key=*/rank_, &links_[1].comm, nullptr));
    name_communicator(links_[1].comm, "gradients");
    for (const Instruction& i : schedule.lists[rank_]) {
      const bool joins = !tasks_.empty() && joins_group(tasks_.back().instructions.back(), i);
      if (!joins) tasks_.emplace_back();
      tasks_.back().instructions.push_back(i);
    }
    for (Task& task : tasks_) task.input = find_input(task.instructions[0]);
  }
  ~PipelineExecutorOf() { ncclCommDestroy(links_[1].comm); }
  PipelineExecutorOf(const PipelineExecutorOf&) = delete;
  PipelineExecutorOf& operator=(const PipelineExecutorOf&) = delete;

  // Enqueues one step, on a batch that stage.begin_step() has been given. `update` is called when all gradients of the
  // parameters are enqueued; `ready(chunk, layer)` for each layer as soon as its are, which lets their reduction over
  // other ranks begin behind the last backwards.
  void step(const std::function<void()>& update, const std::function<void(int, int)>& ready = {}) {
    for (Link& link : links_) link.last = link.before_last = nullptr;
    for (Task& task : tasks_) {
      const Instruction& i = task.instructions[0];
      if (i.kind == Instruction::update) {
        for (Link& link : links_) compute_waits_for(link.last);
        clock_.compute(update);
      } else if (is_compute(i.kind)) {
        Link& link = links_[i.kind == Instruction::backward];
        if (task.input != nullptr) compute_waits_for(&task.input->done);
        compute_waits_for(link.before_last);  // it has read the buffer that the next result goes to
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
    Task* input = nullptr;  // the group that brings what a forward or backward needs, if any
    Event done;             // of a group
  };

  // The way of the activations, or of the gradients.
  struct Link {
    ncclComm_t comm = nullptr;
    Stream stream;
    Event *last = nullptr, *before_last = nullptr;  // of its groups in this step
  };

  Task* find_input(Instruction i) {
    if (!is_compute(i.kind)) return nullptr;
    i.kind = i.kind == Instruction::forward ? Instruction::receive_activation : Instruction::receive_gradient;
    for (Task& task : tasks_) {
      if (std::find(task.instructions.begin(), task.instructions.end(), i) != task.instructions.end()) return &task;
    }
    return nullptr;
  }

  void compute_waits_for(Event* event) {
    if (event != nullptr) CUDA_CHECK(cudaStreamWaitEvent(compute_, *event));
  }

  // Sends and receives the messages of a group, once what comes before them in the list is computed: then a send has
  // its data, and nobody reads any more what a receive overwrites.
  void exchange(Task& group) {
    Link& link = links_[!is_activation(group.instructions[0].kind)];
    CUDA_CHECK(cudaEventRecord(computed_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(link.stream, computed_));
    // TODO 04.7: Enqueue all messages of the group on link.stream, with link.comm, so that none waits for another.
    //   Two neighbours that both send before they receive would wait for each other for ever. What does a group of NCCL
    //   calls do about that? For each i of group.instructions: is_send(i.kind), the rank peer(schedule_, rank_,
    //   i.kind), the floats stage_.message(i), and their number stage_.message_size(i).
    NCCL_CHECK(ncclGroupStart());
    for (const Instruction& i : group.instructions) {
      const int other = peer(schedule_, rank_, i.kind), count = stage_.message_size(i);
      if (is_send(i.kind)) {
        NCCL_CHECK(ncclSend(stage_.message(i), count, ncclFloat, other, link.comm, link.stream));
      } else {
        NCCL_CHECK(ncclRecv(stage_.message(i), count, ncclFloat, other, link.comm, link.stream));
      }
    }
    NCCL_CHECK(ncclGroupEnd());
    // END TODO 04.7
    for (const Instruction& i : group.instructions) {
      if (is_send(i.kind)) continue;
      probe("04.7", "received micro-batch " + std::to_string(i.micro_batch), stage_.message(i),
            {stage_.message_size(i)}, link.stream);
    }
    CUDA_CHECK(cudaEventRecord(group.done, link.stream));
    link.before_last = link.last;
    link.last = &group.done;
  }

  const Schedule& schedule_;
  StageOf<Model>& stage_;
  cudaStream_t compute_;
  IdleClock& clock_;
  int rank_ = 0;
  Link links_[2];  // activations, gradients
  std::vector<Task> tasks_;
  Event computed_;
};

using PipelineExecutor = PipelineExecutorOf<Mlp>;

}  // namespace workshop
