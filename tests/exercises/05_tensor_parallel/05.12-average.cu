    NCCL_CHECK(ncclAllReduce(grads, grads, norms_, ncclFloat, ncclAvg, group_.comm(), blas_.stream()));
