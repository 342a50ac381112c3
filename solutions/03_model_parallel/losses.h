// SPDX-License-Identifier: Apache-2.0
// The losses of an epoch, from where they are computed to where they are printed.
#pragma once

#include "common/group.h"
#include "common/record.h"

namespace workshop {

// The last of the stages has the losses, the first one prints them. Once an epoch is enough.
inline void send_losses(const LossLog& losses, const Group& stages, cudaStream_t stream) {
  const int rank = stages.rank(), last = stages.size() - 1;
  if (last == 0) return;
  const ncclComm_t comm = stages.comm();
  // TODO 03.5: Send losses.losses(), losses.count() floats, from the last rank to rank 0, into the same place there.
  if (rank == last) NCCL_CHECK(ncclSend(losses.losses(), losses.count(), ncclFloat, 0, comm, stream));
  if (rank == 0) NCCL_CHECK(ncclRecv(losses.losses(), losses.count(), ncclFloat, last, comm, stream));
  // END TODO 03.5
  if (rank == 0) probe("03.5", "losses of the epoch", losses.losses(), {losses.count()}, stream);
}

}  // namespace workshop
