  if (rank < last) {
    float* gradient = stage.model.output_gradient();
    NCCL_CHECK(ncclRecv(gradient, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
  }
  float* dx = rank > 0 ? stage.input_gradient.data() : nullptr;
  stage.backward(rows, dx);
  const float* gradient = stage.model.output_gradient();
  if (rank > 0) NCCL_CHECK(ncclSend(gradient, rows * stage.in, ncclFloat, rank - 1, job.comm(), stream));
