// SPDX-License-Identifier: Apache-2.0
// A forward pass through all stages without a backward pass, for validation.
#pragma once

#include "04_pipeline/schedule.h"
#include "04_pipeline/stage.h"
#include "common/nccl/group.h"

namespace workshop {

// Adds the batch's share of the mean loss over `samples_of_mean` samples to *loss, on the last stage. Runs one
// micro-batch after the other, because a chunk has room for only that many samples; nothing overlaps. Collective over
// the stages.
inline void evaluate_batch(PipelineStage& stage, const Schedule& schedule, const Group& stages, const Batch& batch,
                           int samples_of_mean, float* loss, cudaStream_t stream) {
  stage.begin_step(batch, loss);
  const int parts = schedule.parts();
  const auto mine = [&](int part) { return part < parts && part % schedule.stages == stages.rank(); };
  for (int m = 0; m < schedule.micro_batches; ++m) {
    for (int part = 0; part < parts; ++part) {
      const Instruction forward{Instruction::forward, m, part / schedule.stages};
      const Instruction send{Instruction::send_activation, m, part / schedule.stages};
      const Instruction receive{Instruction::receive_activation, m, (part + 1) / schedule.stages};
      if (mine(part)) stage.forward(forward);
      if (part + 1 == parts && mine(part)) stage.add_loss(forward, samples_of_mean);
      // In one group, because an interleaved schedule with a single stage sends to itself.
      NCCL_CHECK(ncclGroupStart());
      if (mine(part) && part + 1 < parts) {
        NCCL_CHECK(ncclSend(stage.message(send), stage.message_size(send), kReal,
                            peer(schedule, stages.rank(), send.kind), stages.comm(), stream));
      }
      if (mine(part + 1)) {
        NCCL_CHECK(ncclRecv(stage.message(receive), stage.message_size(receive), kReal,
                            peer(schedule, stages.rank(), receive.kind), stages.comm(), stream));
      }
      NCCL_CHECK(ncclGroupEnd());
    }
  }
}

}  // namespace workshop
