      CUDA_CHECK(cudaMemcpyAsync(dz, dx + group_.rank() * part, part * sizeof(float), cudaMemcpyDeviceToDevice, stream));
