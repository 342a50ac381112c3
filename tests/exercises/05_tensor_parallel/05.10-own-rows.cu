      CUDA_CHECK(cudaMemsetAsync(whole, 0, R * b.row.out * sizeof(float), stream));
      CUDA_CHECK(cudaMemcpyAsync(whole + group_.rank() * r * b.row.out, mine, r * b.row.out * sizeof(float),
                                 cudaMemcpyDeviceToDevice, stream));
