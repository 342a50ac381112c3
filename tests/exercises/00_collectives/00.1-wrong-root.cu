  NCCL_CHECK(ncclBroadcast(in, out, count, ncclFloat, group.world - 1, group.comm, group.stream));
