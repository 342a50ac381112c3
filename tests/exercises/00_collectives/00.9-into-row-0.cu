  NCCL_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, group.comm, group.stream));
  NCCL_CHECK(ncclAllGather(my_row, out, count, ncclFloat, group.comm, group.stream));
