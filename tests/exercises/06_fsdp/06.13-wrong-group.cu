      NCCL_CHECK(ncclAllGather(shard, whole, sharding.shard, ncclFloat, groups_.replicate.comm(), communication_));
