    NCCL_CHECK(ncclCommSplit(world, rank % size, rank, &shard_, nullptr));
    NCCL_CHECK(ncclCommSplit(world, rank / size, rank, &replicate_, nullptr));
