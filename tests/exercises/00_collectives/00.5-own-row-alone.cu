  CUDA_CHECK(cudaMemcpyAsync(out + group.rank * count, in, count * sizeof(float), cudaMemcpyDeviceToDevice,
                             group.stream));
