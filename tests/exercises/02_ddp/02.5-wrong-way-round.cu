    CUDA_CHECK(cudaEventRecord(ready_[next_], communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, ready_[next_]));
