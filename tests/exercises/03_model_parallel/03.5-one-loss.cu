  if (rank == last) NCCL_CHECK(ncclSend(losses.losses(), 1, ncclFloat, 0, job.comm(), stream));
  if (rank == 0) NCCL_CHECK(ncclRecv(losses.losses(), 1, ncclFloat, last, job.comm(), stream));
