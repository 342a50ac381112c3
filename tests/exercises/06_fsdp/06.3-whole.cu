  part = {0, sharding.count};
