    NCCL_CHECK(ncclAllReduce(p.grad, p.grad, p.count, ncclFloat, ncclSum, comm, stream));
