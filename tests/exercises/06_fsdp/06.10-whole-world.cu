    NCCL_CHECK(ncclCommSplit(world, 0, rank, &shard_, nullptr));
    NCCL_CHECK(ncclCommSplit(world, 0, rank, &replicate_, nullptr));
