  if (rank > 0) {
    NCCL_CHECK(ncclRecv(stage.received.data(), rows * stage.in, ncclFloat, rank - 1, job.comm(), stream));
  }
  const float* output = stage.forward(x, rows);
  if (rank < last) NCCL_CHECK(ncclSend(output, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
