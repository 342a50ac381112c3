    NCCL_CHECK(ncclAllReduce(whole, shard, size, ncclFloat, ncclAvg, groups_.shard.comm(), communication_));
