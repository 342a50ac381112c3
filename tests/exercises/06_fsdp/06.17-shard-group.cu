      NCCL_CHECK(ncclAllReduce(shard, shard, size, ncclFloat, ncclAvg, groups_.shard.comm(), communication_));
