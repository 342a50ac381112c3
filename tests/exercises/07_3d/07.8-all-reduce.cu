    NCCL_CHECK(ncclAllReduce(grads_.data(), grads_.data(), shards_->padded(), ncclFloat, ncclAvg, replicas_.comm(), stream_));
