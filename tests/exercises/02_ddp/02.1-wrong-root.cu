    NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count, ncclFloat, 1, comm, stream));
