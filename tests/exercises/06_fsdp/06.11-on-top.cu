    layout.offsets.push_back(0);
    layout.count += unit.sharding.shard;
