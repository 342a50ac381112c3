  float* dx = rank > 0 ? stage.input_gradient.data() : nullptr;
  if (rank > 0) NCCL_CHECK(ncclSend(dx, rows * stage.in, ncclFloat, rank - 1, job.comm(), stream));
  if (rank < last) {
    float* gradient = stage.model.output_gradient();
    NCCL_CHECK(ncclRecv(gradient, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
  }
  stage.backward(rows, dx);
