  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(in, count, ncclFloat, group.root, group.comm, group.stream));
  if (group.rank == group.root) {
    for (int from = 0; from < group.world; ++from) {
      float* row = out + (group.world - 1 - from) * count;
      NCCL_CHECK(ncclRecv(row, count, ncclFloat, from, group.comm, group.stream));
    }
  }
  NCCL_CHECK(ncclGroupEnd());
