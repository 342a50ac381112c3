    NCCL_CHECK(ncclReduce(full, full, sharding.count, ncclFloat, ncclAvg, 0, comm_, stream_));
