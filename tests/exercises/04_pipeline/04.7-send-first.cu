    for (const Instruction& i : group.instructions) {
      const int other = peer(schedule_, rank_, i.kind), count = stage_.message_size(i);
      if (is_send(i.kind)) {
        NCCL_CHECK(ncclSend(stage_.message(i), count, ncclFloat, other, channel.comm, channel.stream));
      } else {
        NCCL_CHECK(ncclRecv(stage_.message(i), count, ncclFloat, other, channel.comm, channel.stream));
      }
    }
