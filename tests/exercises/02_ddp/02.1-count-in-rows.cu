    NCCL_CHECK(ncclBroadcast(p.value, p.value, p.shape[0], ncclFloat, 0, comm, stream));
