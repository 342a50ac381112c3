      NCCL_CHECK(ncclAllReduce(share, share, R * b.in, ncclFloat, ncclSum, group_.comm(), stream));
      CUDA_CHECK(cudaMemcpyAsync(dy, share + group_.rank() * r * b.in, r * b.in * sizeof(float), cudaMemcpyDeviceToDevice,
                                 stream));
