    if (group_.rank() == 0) {
      NCCL_CHECK(ncclAllReduce(grads, grads, norms_, ncclFloat, ncclSum, group_.comm(), blas_.stream()));
    }
