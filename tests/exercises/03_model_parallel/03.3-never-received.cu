  if (rank > 0) x = stage.received.data();
  const float* output = stage.forward(x, rows);
  if (rank < last) NCCL_CHECK(ncclSend(output, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
