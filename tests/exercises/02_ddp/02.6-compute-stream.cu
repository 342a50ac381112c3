    NCCL_CHECK(ncclAllReduce(grads, grads, bucket.count, ncclFloat, ncclAvg, comm_, compute_));
