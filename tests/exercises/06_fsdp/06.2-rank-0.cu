  std::copy_n(values.begin(), size, shard.begin());
