    NCCL_CHECK(ncclAllReduce(whole, whole, size * groups_.shards(), ncclFloat, ncclAvg, groups_.shard_comm(), communication_));
    float* own = whole + groups_.shard_rank() * size;
    if (own != shard) CUDA_CHECK(cudaMemcpyAsync(shard, own, size * sizeof(float), cudaMemcpyDeviceToDevice, communication_));
