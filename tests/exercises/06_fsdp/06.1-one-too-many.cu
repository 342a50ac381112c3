    shard = count / ranks + 1;
