  NCCL_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclAvg, group.comm, group.stream));
