// SPDX-License-Identifier: Apache-2.0
// What the cpu backend tells about itself, beyond the APIs that it implements.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace workshop::cpu {

// How often this process has allocated device or pinned memory, and how often its host has waited for the device. Both
// stand still during a training step that is written well. And how often the program itself has recorded an event.
struct Counters {
  std::uint64_t allocations;       // cudaMalloc, cudaMallocHost, cudaFree, cudaFreeHost
  std::uint64_t synchronizations;  // synchronization of device, stream or event; cudaMemcpy; BLAS results on the host
  std::ptrdiff_t devices;          // on which it has created memory, a stream or an event: should be one
  int handles;                     // of cuBLAS, the most alive at a time on one stream: each has a workspace of its own
  std::uint64_t events;            // cudaEventRecord on the main thread, but for what looks after the program
};
Counters counters();

// CUDA_DEVICE_MAX_CONNECTIONS as it was at the first call, which is when CUDA reads it; 8 where it was not set.
int hardware_queues();

// False once ncclCommAbort has abandoned an operation under way: then a thread may be inside MPI forever, MPI_Finalize
// would wait for it, and the process should end without.
bool mpi_usable();

// Cores that this rank has to itself, on which large kernels and products run: those that the process may use, divided
// among the ranks that the launcher started on the node, or SLURM_CPUS_PER_TASK of them.
int cores_of_rank();

// Has `end`, which does not return, end the program where the backend finds a mistake in it that no status of a call
// can tell: `message` is one line. By default the process alone ends, with status 1.
void on_mistake(void (*end)(const char* message));

// Where messages say that memory was allocated, for who allocates it on behalf of others.
void allocated_at(const void* pointer, const char* file, int line);

// What messages call the stream.
void name_stream(cudaStream_t stream, const char* name);

// The processor that OpenBLAS's kernels in use are made for, such as "SkylakeX".
const char* blas_kernels();

// True where large products are oneDNN's.
bool uses_onednn();

}  // namespace workshop::cpu
