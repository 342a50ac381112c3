    NCCL_CHECK(ncclReduceScatter(grads_.data(), grads_.data(), shard, ncclFloat, ncclAvg, replicas_.comm(), stream_));
