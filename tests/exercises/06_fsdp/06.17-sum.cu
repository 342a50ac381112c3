      NCCL_CHECK(ncclAllReduce(shard, shard, size, ncclFloat, ncclSum, groups_.replicate.comm(), communication_));
