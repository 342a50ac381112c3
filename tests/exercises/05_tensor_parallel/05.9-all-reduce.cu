      NCCL_CHECK(ncclAllReduce(share, share, group_.size() * count, ncclFloat, ncclSum, group_.comm(), stream));
      CUDA_CHECK(cudaMemcpyAsync(y, share + group_.rank() * count, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
      launch(add_bias, count, stream, y, b.row.bias, r, b.row.out);
