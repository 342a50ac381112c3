    NCCL_CHECK(ncclAllReduce(whole, whole, size * groups_.shard.size(), ncclFloat, ncclAvg, groups_.shard.comm(), communication_));
    float* own = whole + groups_.shard.rank() * size;
    if (own != shard) CUDA_CHECK(cudaMemcpyAsync(shard, own, size * sizeof(float), cudaMemcpyDeviceToDevice, communication_));
