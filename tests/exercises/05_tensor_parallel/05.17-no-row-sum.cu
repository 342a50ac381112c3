    CUDA_CHECK(cudaMemsetAsync(dots, 0, rows * sizeof(float), stream));
    launch(softmax_backward, rows * S_, stream, dp, p, dots, rows, S_);
