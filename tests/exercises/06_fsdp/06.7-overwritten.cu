    CUDA_CHECK(cudaMemcpyAsync(part, received, sharding.shard * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
