  const float factor = 1.0f / static_cast<float>(elements);
  CUBLAS_CHECK(cublasSscal(blas, n, &factor, gradient, 1));
