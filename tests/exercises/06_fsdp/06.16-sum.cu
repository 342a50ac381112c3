    NCCL_CHECK(ncclReduceScatter(whole, shard, size, ncclFloat, ncclSum, groups_.shard.comm(), communication_));
