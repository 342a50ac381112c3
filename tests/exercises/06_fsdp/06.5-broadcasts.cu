    for (int root = 0; root < units_[u].sharding.ranks; ++root) {
      NCCL_CHECK(ncclBroadcast(part, full + root * count, count, ncclFloat, root, comm_, stream_));
    }
