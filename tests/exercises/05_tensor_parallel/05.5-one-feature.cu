      NCCL_CHECK(ncclAllGather(part, whole, rows, ncclFloat, group_.comm(), blas_.stream()));
