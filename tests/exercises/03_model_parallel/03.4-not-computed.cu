  if (rank < last) {
    float* gradient = stage.model.output_gradient();
    NCCL_CHECK(ncclRecv(gradient, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
  }
  stage.backward(rows, nullptr);
  float* dx = stage.input_gradient.data();
  if (rank > 0) NCCL_CHECK(ncclSend(dx, rows * stage.in, ncclFloat, rank - 1, job.comm(), stream));
