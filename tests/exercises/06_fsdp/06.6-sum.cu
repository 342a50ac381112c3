    NCCL_CHECK(ncclReduceScatter(full, received, sharding.shard, ncclFloat, ncclSum, comm_, stream_));
