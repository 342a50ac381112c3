  if (rank == 0) NCCL_CHECK(ncclSend(losses.losses(), losses.count(), ncclFloat, last, job.comm(), stream));
  if (rank == last) NCCL_CHECK(ncclRecv(losses.losses(), losses.count(), ncclFloat, 0, job.comm(), stream));
