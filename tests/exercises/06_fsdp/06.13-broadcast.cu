      NCCL_CHECK(ncclBroadcast(shard, whole, sharding.shard, ncclFloat, 0, groups_.shard.comm(), communication_));
