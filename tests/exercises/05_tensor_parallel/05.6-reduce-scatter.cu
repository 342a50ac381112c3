    NCCL_CHECK(ncclReduceScatter(gradient_.data(), dz_.data(), outputs, ncclFloat, ncclSum, group_.comm(), stream));
