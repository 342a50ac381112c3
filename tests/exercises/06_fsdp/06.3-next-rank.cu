  part = {(rank + 1) % sharding.ranks * sharding.shard, sharding.shard};
