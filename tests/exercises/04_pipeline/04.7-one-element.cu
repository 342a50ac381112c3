    NCCL_CHECK(ncclGroupStart());
    for (const Instruction& i : group.instructions) {
      const int other = peer(schedule_, rank_, i.kind);
      if (is_send(i.kind)) {
        NCCL_CHECK(ncclSend(stage_.message(i), 1, ncclFloat, other, channel.comm, channel.stream));
      } else {
        NCCL_CHECK(ncclRecv(stage_.message(i), 1, ncclFloat, other, channel.comm, channel.stream));
      }
    }
    NCCL_CHECK(ncclGroupEnd());
