    NCCL_CHECK(ncclAllReduce(p.value, p.value, p.count, ncclFloat, ncclAvg, comm, stream));
