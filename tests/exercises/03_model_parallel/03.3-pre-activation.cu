  if (rank > 0) {
    x = stage.received.data();
    NCCL_CHECK(ncclRecv(stage.received.data(), rows * stage.in, ncclFloat, rank - 1, job.comm(), stream));
  }
  stage.forward(x, rows);
  const float* output = stage.activations.layers.back().buffers[0].data();
  if (rank < last) NCCL_CHECK(ncclSend(output, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
