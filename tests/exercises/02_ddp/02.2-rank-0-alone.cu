    NCCL_CHECK(ncclReduce(p.grad, p.grad, p.count, ncclFloat, ncclAvg, 0, comm, stream));
