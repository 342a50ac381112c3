// SPDX-License-Identifier: Apache-2.0
// What the cpu backend tells about itself, beyond the APIs that it implements.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

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

// A call in the source of the program.
struct SourceCall {
  const char* text = nullptr;  // "ncclGroupEnd()"; null for none
  const char* file = "";
  int line = 0;  // 0: not known
};

// Has messages about mistakes say what `find` returns, the call that the program is in. By default they name the
// function alone.
void find_source_calls(SourceCall (*find)());

// Calls in files whose path contains `path` look after the program and are not counted as its own.
void looks_after_program(const char* path);

// Has `end`, which does not return, end the program where the backend finds a mistake in it that no status of a call
// can tell: `message` is one line. By default the process alone ends, with status 1.
void on_mistake(void (*end)(const char* message));

// Where messages say that memory was allocated, for who allocates it on behalf of others.
void allocated_at(const void* pointer, const char* file, int line);

// What messages call the stream.
void name_stream(cudaStream_t stream, const char* name);

// ---- launching kernels ----------------------------------------------------------------------------------------------

// Whether the order of the uses of memory is checked: WORKSHOP_ORDER=1.
bool order_is_asked_for();
inline bool checks_order() {
  static const bool instance = order_is_asked_for();
  return instance;
}

// What a kernel does with an argument. Of an array it is certain to use the first element, so this raises no false
// alarm; what is not const counts as written. Other arguments have no bytes.
struct KernelArgument {
  const void* begin = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};
template <typename Parameter, typename Argument>
KernelArgument kernel_argument(const Argument& argument) {
  if constexpr (std::is_pointer_v<Parameter>) {
    using Element = std::remove_pointer_t<Parameter>;
    return {static_cast<Parameter>(argument), sizeof(Element), !std::is_const_v<Element>};
  } else if constexpr (requires { typename Parameter::Element; }) {  // an array of a type of the program's own
    using Element = typename Parameter::Element;
    return {Parameter(argument).data(), sizeof(Element), !std::is_const_v<Element>};
  } else {
    return {};
  }
}

// Checks the order of a launch, and that the kernel uses memory of its own device only.
void order_kernel(cudaStream_t stream, const SourceCall& site, std::span<const KernelArgument> arguments);

// Enqueues `call`, a function object that calls `kernel` with its arguments, on `stream`; the kernel has so many
// independent iterations. cudaGetLastError() says whether that failed.
template <typename Call>
void launch_kernel(cudaStream_t stream, const SourceCall& site, const void* kernel, int iterations,
                   std::initializer_list<KernelArgument> arguments, const Call& call) {
  if (!may_launch(stream)) return;
  load_kernel(kernel);
  if (checks_order()) order_kernel(stream, site, arguments);
  if (iterations >= kSharedElements) {
    enqueue_kernel(stream, iterations, [call] { run_shared(call); });
  } else if (checks_order()) {
    enqueue_kernel(stream, iterations, [call] { run_in_turn(call); });
  } else {
    enqueue_kernel(stream, iterations, call);
  }
}

// ---- products -------------------------------------------------------------------------------------------------------

// The processor that OpenBLAS's kernels in use are made for, such as "SkylakeX".
const char* blas_kernels();

// True where large products are oneDNN's.
bool uses_onednn();

}  // namespace workshop::cpu
