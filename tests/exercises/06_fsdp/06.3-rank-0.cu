  part = {0, sharding.shard};
