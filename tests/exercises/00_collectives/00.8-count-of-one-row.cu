  NCCL_CHECK(ncclAllReduce(in, out, count, ncclFloat, ncclSum, group.comm, group.stream));
