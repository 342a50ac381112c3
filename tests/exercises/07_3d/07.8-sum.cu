    NCCL_CHECK(ncclReduceScatter(grads_.data(), grad, shard, ncclFloat, ncclSum, replicas_.comm(), stream_));
