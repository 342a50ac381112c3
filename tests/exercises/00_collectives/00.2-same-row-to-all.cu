  NCCL_CHECK(ncclGroupStart());
  if (group.rank == group.root) {
    for (int to = 0; to < group.world; ++to) {
      NCCL_CHECK(ncclSend(in, count, ncclFloat, to, group.comm, group.stream));
    }
  }
  NCCL_CHECK(ncclRecv(out, count, ncclFloat, group.root, group.comm, group.stream));
  NCCL_CHECK(ncclGroupEnd());
