      for (int rank = 0; rank < group_.size(); ++rank) {
        if (rank == group_.rank()) continue;
        CUDA_CHECK(cudaMemsetAsync(whole + rank * l.out * rows, 0, rows * l.out * sizeof(float), blas_.stream()));
      }
      NCCL_CHECK(ncclAllReduce(whole, whole, group_.size() * rows * l.out, ncclFloat, ncclSum, group_.comm(),
                               blas_.stream()));
