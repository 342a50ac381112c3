      NCCL_CHECK(ncclAllReduce(shard, shard, size, ncclFloat, ncclSum, groups_.replicate_comm(), communication_));
