    if (replicas_.rank() == 0) {
      NCCL_CHECK(ncclAllGather(value, values_.data(), shard, ncclFloat, replicas_.comm(), stream_));
    }
