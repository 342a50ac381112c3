  NCCL_CHECK(ncclReduce(dx, dx, rows * l.in, ncclFloat, ncclSum, 0, group.comm(), blas.stream()));
  NCCL_CHECK(ncclBroadcast(dx, dx, rows * l.in, ncclFloat, 0, group.comm(), blas.stream()));
