      CUDA_CHECK(cudaMemcpyAsync(dy, share + group_.rank() * r * b.in, r * b.in * sizeof(float), cudaMemcpyDeviceToDevice,
                                 stream));
