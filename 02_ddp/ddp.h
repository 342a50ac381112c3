// SPDX-License-Identifier: Apache-2.0
// Data parallelism: replicas that start from the same parameters, and update them with the same gradients, stay alike.
// Nothing else has to be sent; each rank keeps its own copy of the optimizer's state.
#pragma once

#include <vector>

#include "common/nccl/group.h"
#include "common/training/training.h"
#include "model/model.h"

namespace workshop {

// Gives every rank the parameters of rank 0, the only one that has drawn initial values.
inline void broadcast_parameters(const Model& model, const Group& replicas, cudaStream_t stream) {
  const ncclComm_t comm = replicas.comm();
  for (const Parameter& p : model.parameters()) {
    // TODO 02.1: Send this parameter's value from rank 0 to all ranks, in place.
    //   ncclBroadcast(send, receive, count, kReal, root, comm, stream) (docs/calls.md). Its count, p.count(), is in
    //   elements, not in bytes. kReal is their type: ncclFloat, unless the program is built for another precision.
    todo("02.1");
    // END TODO 02.1
    probe("02.1", p.name, p.value, {p.count()}, stream);
  }
}

// Averages the gradients over the replicas. Once per step is enough, however many batches were accumulated: the average
// of sums is the sum of averages.
inline void average_gradients(const Model& model, const Group& replicas, cudaStream_t stream) {
  const Range range("average gradients", stream);
  const ncclComm_t comm = replicas.comm();
  for (const Parameter& p : model.parameters()) {
    // TODO 02.2: Average this parameter's gradient over all ranks, in place.
    //   ncclAllReduce(send, receive, count, kReal, operation, comm, stream). Which operation divides by the number
    //   of ranks for you?
    todo("02.2");
    // END TODO 02.2
    probe("02.2", {p.name, ".grad, averaged"}, p.grad, {p.count()}, stream);
  }
}

// Averages the losses of an epoch, of which each rank knows only those of its own batches.
inline void average_losses(const LossLog& losses, const Group& replicas, cudaStream_t stream) {
  const ncclComm_t comm = replicas.comm();
  // TODO 02.3: Average losses.losses() over all ranks into losses.global_losses(): losses.count() floats.
  //   All ranks may have the result: the call is the one of TODO 02.2, but not in place, and a loss is always a float.
  todo("02.3");
  // END TODO 02.3
  probe("02.3", "losses of the epoch, averaged", losses.global_losses(), {losses.count()}, stream);
}

// Computes the mean loss over samples that are not trained on, those of validation or test. Each sample counts once,
// whatever the number of replicas. add_loss(batch, loss) adds a batch's share of the mean to *loss; where several ranks
// form a replica, only one of them adds it.
inline void evaluate(Training& training, const Group& replicas, cudaStream_t stream,
                     const Training::AddLoss& add_loss) {
  const int first = training.first_evaluated(), count = training.evaluated();
  if (count == 0) return;
  std::vector<int> mine;
  // TODO 02.4: Which of the samples first … first + count - 1 are this rank's?
  //   As DistributedSampler does: every replicas.size()-th from the replicas.rank()-th on. But without padding: a
  //   sample that two ranks see would count twice, and the result would depend on the number of ranks.
  todo("02.4");
  // END TODO 02.4
  probe("02.4", "this rank's samples of the evaluation", mine);

  training.evaluate(mine, add_loss, [&](float* loss) {
    const ncclComm_t comm = training.comm();
    // TODO 02.5: Combine the ranks' shares of the mean, in place, on every rank: one float.
    //   The call is the one of TODO 02.3. Each share is divided by the number of all samples already: is it the sum or
    //   the average of them?
    todo("02.5");
    // END TODO 02.5
    probe("02.5", "loss of the evaluation", loss, {1}, stream);
  });
}

}  // namespace workshop
