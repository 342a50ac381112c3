  const float one = 1.0f;
  CUBLAS_CHECK(cublasSgemv(blas, CUBLAS_OP_T, rows, l.out, &one, dy, rows, ones, 1, &accumulate, l.bias_grad, 1));
