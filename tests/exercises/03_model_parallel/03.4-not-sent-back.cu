  if (rank < last) {
    float* gradient = stage.model.output_gradient();
    NCCL_CHECK(ncclRecv(gradient, rows * stage.out, ncclFloat, rank + 1, job.comm(), stream));
  }
  stage.backward(rows, rank > 0 ? stage.input_gradient.data() : nullptr);
