    CUDA_CHECK(cudaEventRecord(worked_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, worked_));
