    if (rank % 2 == 0) groups.shard = world.split(rank / size, rank, "shard");
    groups.replicate = world.split(rank % size, rank, "replicate");
    if (rank % 2 != 0) groups.shard = world.split(rank / size, rank, "shard");
