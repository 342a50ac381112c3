    NCCL_CHECK(ncclAllReduce(full, full, sharding.padded(), ncclFloat, ncclAvg, comm_, stream_));
