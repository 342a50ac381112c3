    NCCL_CHECK(ncclAllReduce(p.grad, p.grad, p.count, ncclFloat, ncclAvg, comm, stream));
    NCCL_CHECK(ncclAllReduce(p.grad, p.grad, p.count, ncclFloat, ncclAvg, comm, stream));
