  if (rank > 0) {
    x = stage.received.data();
    NCCL_CHECK(ncclRecv(stage.received.data(), rows * stage.in, ncclFloat, 0, job.comm(), stream));
  }
  const float* output = stage.forward(x, rows);
  if (rank < last) NCCL_CHECK(ncclSend(output, rows * stage.out, ncclFloat, last, job.comm(), stream));
