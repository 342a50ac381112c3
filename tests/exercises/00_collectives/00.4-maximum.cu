  NCCL_CHECK(ncclReduce(in, out, count, ncclFloat, ncclMax, group.root, group.comm, group.stream));
