  NCCL_CHECK(ncclGroupStart());
  if (group.rank == group.root) {
    for (int to = 0; to < group.world; ++to) {
      if (to != group.root) NCCL_CHECK(ncclSend(in + to * count, count, ncclFloat, to, group.comm, group.stream));
    }
  } else {
    NCCL_CHECK(ncclRecv(out, count, ncclFloat, group.root, group.comm, group.stream));
  }
  NCCL_CHECK(ncclGroupEnd());
