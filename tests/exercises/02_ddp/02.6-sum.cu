    NCCL_CHECK(ncclAllReduce(grads, grads, bucket.count, ncclFloat, ncclSum, comm_, communication_));
