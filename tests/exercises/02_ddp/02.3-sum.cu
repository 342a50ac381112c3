  NCCL_CHECK(ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclSum, comm, stream));
