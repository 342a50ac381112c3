    launch(add_scaled, sharding.shard, stream_, received, part, 1.0f, sharding.shard);
