// SPDX-License-Identifier: Apache-2.0
// A whole NCCL program without the common layer: every rank contributes its number, and all of them get the sum.
// 00_collectives/from_nothing.md says how to compile and start it.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>

void stop(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);  // ends the other ranks, too: they would wait for this one
}
void check(cudaError_t status) {
  if (status != cudaSuccess) stop(cudaGetErrorString(status));
}
void check(ncclResult_t status) {
  if (status != ncclSuccess) stop(ncclGetErrorString(status));
}

int main(int argc, char** argv) {
  // 1. Who am I?
  int provided = 0, rank = 0, world = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);

  // 2. Which GPU of this node is mine? The first rank of a node takes the first one.
  MPI_Comm node;
  int local_rank = 0, devices = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  check(cudaGetDeviceCount(&devices));
  check(cudaSetDevice(local_rank % devices));

  // 3. Meet the others: rank 0 makes an id, MPI brings it to all ranks, and all of them call ncclCommInitRank().
  ncclUniqueId id;
  if (rank == 0) check(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm = nullptr;
  check(ncclCommInitRank(&comm, world, id, rank));

  // 4. Enqueue the work: copy to the device, sum, copy back.
  cudaStream_t stream = nullptr;
  float value = static_cast<float>(rank), *data = nullptr;
  check(cudaStreamCreate(&stream));
  check(cudaMalloc(&data, sizeof value));
  check(cudaMemcpyAsync(data, &value, sizeof value, cudaMemcpyHostToDevice, stream));
  check(ncclAllReduce(data, data, 1, ncclFloat, ncclSum, comm, stream));
  check(cudaMemcpyAsync(&value, data, sizeof value, cudaMemcpyDeviceToHost, stream));

  // 5. Wait for it, and only then look.
  check(cudaStreamSynchronize(stream));
  std::printf("rank %d of %d: the sum is %g\n", rank, world, value);

  // 6. Clean up.
  check(ncclCommDestroy(comm));
  check(cudaFree(data));
  check(cudaStreamDestroy(stream));
  MPI_Finalize();
}
