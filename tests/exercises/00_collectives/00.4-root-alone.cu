  if (group.rank == group.root) {
    NCCL_CHECK(ncclReduce(in, out, count, ncclFloat, ncclSum, group.root, group.comm, group.stream));
  }
