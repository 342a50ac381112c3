      NCCL_CHECK(ncclAllReduce(dx, dx, group_.size() * part, ncclFloat, ncclSum, group_.comm(), stream));
      CUDA_CHECK(cudaMemcpyAsync(dz, dx + group_.rank() * part, part * sizeof(float), cudaMemcpyDeviceToDevice, stream));
