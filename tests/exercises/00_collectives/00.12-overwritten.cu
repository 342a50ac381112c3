    CUDA_CHECK(cudaMemcpyAsync(data + incoming.begin, received, incoming.size * sizeof(float), cudaMemcpyDeviceToDevice,
                               ring.stream));
