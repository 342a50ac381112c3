  NCCL_CHECK(ncclGroupStart());
  for (int peer = 0; peer < group.world; ++peer) {
    NCCL_CHECK(ncclSend(in + group.rank * count, count, ncclFloat, peer, group.comm, group.stream));
    NCCL_CHECK(ncclRecv(out + peer * count, count, ncclFloat, peer, group.comm, group.stream));
  }
  NCCL_CHECK(ncclGroupEnd());
