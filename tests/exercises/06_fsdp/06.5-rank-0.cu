    NCCL_CHECK(ncclAllGather(full, full, count, ncclFloat, comm_, stream_));
