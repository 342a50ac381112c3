  if (rank > 0) {
    x = stage.received.data();
    NCCL_CHECK(ncclRecv(stage.received.data(), stage.in, ncclFloat, rank - 1, job.comm(), stream));
  }
  const float* output = stage.forward(x, rows);
  if (rank < last) NCCL_CHECK(ncclSend(output, stage.out, ncclFloat, rank + 1, job.comm(), stream));
