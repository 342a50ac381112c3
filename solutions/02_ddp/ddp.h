// SPDX-License-Identifier: Apache-2.0
// Data parallelism: replicas that start with the same parameters and update them with the same gradients stay equal.
// Nothing else has to be sent. Each rank keeps its own copy of the optimizer's state.
#pragma once

#include <array>
#include <vector>

#include "common/nccl/group.h"
#include "common/training/training.h"
#include "model/model.h"

namespace workshop {

// Copies the parameters of rank 0 to all ranks. Only rank 0 has drawn initial values.
inline void broadcast_parameters(const Model& model, const Group& replicas, cudaStream_t stream) {
  // WRITE 02.A: Give every rank the parameters of rank 0, on `stream`.
  //   model.parameters() lists the parameters. Each `p` of them has p.count() elements of type kReal at p.value, in
  //   device memory. The communicator is replicas.comm(). The host must not wait.
  const ncclComm_t comm = replicas.comm();
  for (const Parameter& p : model.parameters()) {
    // TODO 02.1: Send this parameter's value from rank 0 to all ranks, in place.
    //   ncclBroadcast(send, receive, count, kReal, root, comm, stream) (docs/calls.md). The count, p.count(), is in
    //   elements, not in bytes. kReal is their type: ncclFloat, or ncclBfloat16 with --precision bf16.
    NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count(), kReal, 0, comm, stream));
    // END TODO 02.1
  }
  // END WRITE 02.A
  for (const Parameter& p : model.parameters()) probe("02.1", p.name, p.value, {p.count()}, stream);
}

// Averages the gradients over the replicas. Call it once per step, after all batches have been accumulated: the average
// of sums is the sum of averages.
inline void average_gradients(const Model& model, const Group& replicas, cudaStream_t stream) {
  for (const Parameter& p : model.parameters())
    probe("02.B", {"given to average_gradients: ", p.name}, p.grad, {p.count()}, stream);
  // WRITE 02.B: Average the gradients over all ranks, in place, on `stream`.
  //   Each parameter `p` of the model has p.count() gradients of type kReal at p.grad. Afterwards, all ranks have the
  //   same gradients: the mean of what they had before. One NCCL call per parameter; the host must not wait. Create a
  //   Range("average gradients", stream) first: the timeline shows the work that is enqueued during its lifetime.
  const Range range("average gradients", stream);
  const ncclComm_t comm = replicas.comm();
  for (const Parameter& p : model.parameters()) {
    // TODO 02.2: Average this parameter's gradient over all ranks, in place.
    //   ncclAllReduce(send, receive, count, kReal, operation, comm, stream). Which operation also divides by the number
    //   of ranks?
    NCCL_CHECK(ncclAllReduce(p.grad, p.grad, p.count(), kReal, ncclAvg, comm, stream));
    // END TODO 02.2
  }
  // END WRITE 02.B
  for (const Parameter& p : model.parameters()) probe("02.2", {p.name, ".grad, averaged"}, p.grad, {p.count()}, stream);
}

// Averages the losses of an epoch over the replicas. Each rank has only the losses of its own batches.
inline void average_losses(const LossLog& losses, const Group& replicas, cudaStream_t stream) {
  const ncclComm_t comm = replicas.comm();
  // TODO 02.3: Average losses.losses() over all ranks into losses.global_losses(): losses.count() floats.
  //   Use the call of TODO 02.2, but not in place. A loss is always a float. Every rank gets the result.
  NCCL_CHECK(ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclAvg, comm, stream));
  // END TODO 02.3
  probe("02.3", "losses of the epoch, averaged", losses.global_losses(), {losses.count()}, stream);
}

// Returns which of the samples first … first + count - 1 this rank evaluates.
inline std::vector<int> evaluated_by(const Group& replicas, int first, int count) {
  // WRITE 02.C: Divide the samples among the ranks, and return those of this rank.
  //   Take the samples as DistributedSampler does: rank 0 the first, rank 1 the second … But do not pad: each sample
  //   must be on one rank only, because a sample on two ranks would count twice. A rank may have none.
  std::vector<int> mine;
  // TODO 02.4: Append to `mine` this rank's part of the samples first … first + count - 1.
  //   Like DistributedSampler, take every replicas.size()-th sample, starting with the replicas.rank()-th. But do not
  //   pad: a sample on two ranks would count twice, and the result would depend on the number of ranks.
  for (int i = replicas.rank(); i < count; i += replicas.size()) mine.push_back(first + i);
  // END TODO 02.4
  return mine;
  // END WRITE 02.C
}

// Computes the mean loss over the validation or the test samples. Each sample counts once, for any number of replicas.
// add_loss(batch, loss) must add a batch's share of the mean to *loss. If several ranks form a replica, as in chapter
// 07, only one of them may add the share.
inline void evaluate(Training& training, const Group& replicas, cudaStream_t stream,
                     const Training::AddLoss& add_loss) {
  const int first = training.first_evaluated(), count = training.evaluated();
  if (count == 0) return;
  probe("02.C", "given to evaluate: first sample, number of samples", std::array{first, count});
  const std::vector<int> mine = evaluated_by(replicas, first, count);
  probe("02.4", "this rank's samples of the evaluation", mine);

  training.evaluate(mine, add_loss, [&](float* loss) {
    const ncclComm_t comm = training.comm();
    // TODO 02.5: All-reduce `loss`, this rank's share of the mean, over `comm`, in place: one float.
    //   Use the call of TODO 02.3. Each share is already divided by the number of all samples: do you need the sum of
    //   the shares or their average?
    NCCL_CHECK(ncclAllReduce(loss, loss, 1, ncclFloat, ncclSum, comm, stream));
    // END TODO 02.5
    probe("02.5", "loss of the evaluation", loss, {1}, stream);
  });
}

}  // namespace workshop
