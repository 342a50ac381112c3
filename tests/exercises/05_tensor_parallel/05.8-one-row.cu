    NCCL_CHECK(ncclAllGather(mine, whole, b.in, ncclFloat, group_.comm(), blas_.stream()));
