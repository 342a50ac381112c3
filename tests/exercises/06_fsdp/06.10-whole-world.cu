    groups.shard = world.split(0, rank, "shard");
    groups.replicate = world.split(0, rank, "replicate");
