// SPDX-License-Identifier: Apache-2.0
// What the ranks of a pipeline do besides their steps: forward passes for validation, and losses that are passed on.
#pragma once

#include "03_model_parallel/model_parallel.h"
#include "04_pipeline/schedule.h"
#include "04_pipeline/stage.h"
#include "common/nccl/group.h"

namespace workshop {

// Adds the batch's share of the mean loss over `samples_of_mean` samples to *loss, on the stage with the model's last
// part. Runs one micro-batch after the other, because a chunk has room for the samples of only one; nothing overlaps.
// Collective over the stages.
inline void evaluate_batch(PipelineStage& stage, const Schedule& schedule, const Group& stages, const Batch& batch,
                           int samples_of_mean, float* loss, cudaStream_t stream) {
  stage.begin_step(batch, loss);
  const int parts = schedule.parts();
  const auto mine = [&](int part) { return part < parts && schedule.stage_of(part) == stages.rank(); };
  for (int m = 0; m < schedule.micro_batches; ++m) {
    for (int part = 0; part < parts; ++part) {
      const Instruction forward{Instruction::forward, m, schedule.chunk_of(part)};
      const Instruction send{Instruction::send_activation, m, schedule.chunk_of(part)};
      if (mine(part)) stage.forward(forward);
      if (part + 1 == parts && mine(part)) stage.add_loss(forward, samples_of_mean);
      // In one group, because a stage that holds both parts sends to itself.
      NCCL_CHECK(ncclGroupStart());
      if (mine(part) && part + 1 < parts) {
        NCCL_CHECK(ncclSend(stage.message(send), stage.message_size(send), kReal, peer(schedule, stages.rank(), send),
                            stages.comm(), stream));
      }
      if (mine(part + 1)) {
        const Instruction receive{Instruction::receive_activation, m, schedule.chunk_of(part + 1)};
        NCCL_CHECK(ncclRecv(stage.message(receive), stage.message_size(receive), kReal,
                            peer(schedule, stages.rank(), receive), stages.comm(), stream));
      }
      NCCL_CHECK(ncclGroupEnd());
    }
  }
}

// Sends the losses of the epoch from the stage with the model's last part, which computes them, to the first one, which
// prints them. In a V, this is the same stage. Call it once per epoch on all stages.
inline void send_losses(const LossLog& losses, const Schedule& schedule, const Group& stages, cudaStream_t stream) {
  if (schedule.stage_of(schedule.parts() - 1) > 0) send_losses(losses, stages, stream);
}

}  // namespace workshop
