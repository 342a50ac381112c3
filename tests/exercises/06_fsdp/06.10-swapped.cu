    groups.shard = world.split(rank % size, rank, "shard");
    groups.replicate = world.split(rank / size, rank, "replicate");
