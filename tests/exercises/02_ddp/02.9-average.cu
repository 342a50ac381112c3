  NCCL_CHECK(ncclAllReduce(loss.data(), loss.data(), 1, ncclFloat, ncclAvg, job.comm(), stream));
