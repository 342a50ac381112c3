    CUDA_CHECK(cudaMemcpyAsync(dz_.data(), gradient_.data(), outputs * sizeof(float), cudaMemcpyDeviceToDevice, stream));
