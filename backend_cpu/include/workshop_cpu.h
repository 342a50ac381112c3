// SPDX-License-Identifier: Apache-2.0
// The cpu backend's own functions, beyond the APIs that it implements.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace workshop::cpu {

// Counts of this process. In a well-written training step, `allocations` and `synchronizations` do not change.
struct Counters {
  std::uint64_t allocations;       // cudaMalloc, cudaMallocHost, cudaFree, cudaFreeHost
  std::uint64_t synchronizations;  // synchronization of device, stream or event; cudaMemcpy; BLAS results on the host
  std::ptrdiff_t devices;          // devices on which it has created memory, a stream or an event: should be one
  int handles;                     // most cuBLAS handles at a time on one stream: each has its own workspace
  std::uint64_t events;            // cudaEventRecord by the program itself, on the main thread
};
Counters counters();

// Returns CUDA_DEVICE_MAX_CONNECTIONS as it was at the first call, when CUDA reads it; 8 if it was not set.
int hardware_queues();

// Returns false once ncclCommAbort has abandoned a running operation. A thread may then be inside MPI forever, and
// MPI_Finalize would wait for it, so the process should end without calling it.
bool mpi_usable();

// Returns the number of cores that this rank has to itself, on which large kernels and products run: those that the
// process may use, divided by the number of ranks on the node, or SLURM_CPUS_PER_TASK.
int cores_of_rank();

// A call in the program's source.
struct SourceCall {
  const char* text = nullptr;  // "ncclGroupEnd()"; null for none
  const char* file = "";
  int line = 0;  // 0: unknown
};

// Sets the function that finds the call that the program is in, for messages about mistakes. By default, they name only
// the function.
void find_source_calls(SourceCall (*find)());

// Declares that calls in files whose path contains `path` only watch the program, and are not counted as its own.
void looks_after_program(const char* path);

// Sets the function that ends the program when the backend finds a mistake that no call's status can report. It must
// not return; `message` is one line. By default, only this process ends, with status 1.
void on_mistake(void (*end)(const char* message));

// Sets the place that messages give for an allocation. For code that allocates on behalf of its callers.
void allocated_at(const void* pointer, const char* file, int line);

// Sets the stream's name in messages. The text must outlive the stream.
void name_stream(cudaStream_t stream, const char* name);

// What held up a stream, or the host, on the simulated machine (WORKSHOP_SIMULATE), in all. A stream is held up by an
// NCCL operation, another stream, or a late host. Without a simulated machine, only the host's waits, of no seconds.
struct Stall {
  std::string on;    // the name of the stream; "host"
  std::string call;  // the call of the program that holds it up, "ncclAllReduce(…)"; empty if it is the host's lateness
  std::string place;   // of the call, "02_ddp/ddp.cu:41"; empty if it is unknown
  std::string behind;  // the name of the stream that it waits for; empty if it waits for none
  double seconds = 0;
  int times = 0;
};
std::vector<Stall> stalls();

// Uses of a device or link of the simulated machine by two operations at the same time. One of them waits for the other
// then, and which one it is depends on the real machine. So the times are exact only where nothing overlaps.
struct Overlap {
  const char* resource;  // "the outgoing link between nodes"
  int times;
};
// overlaps() tells of the operations since watch_overlaps(). Call both while all streams are idle.
void watch_overlaps();
std::vector<Overlap> overlaps();

// ---- launching kernels ----------------------------------------------------------------------------------------------

// Whether the order of the uses of memory is checked: WORKSHOP_ORDER=1.
bool order_is_asked_for();
inline bool checks_order() {
  static const bool instance = order_is_asked_for();
  return instance;
}

// How a kernel uses an argument. It certainly uses the first element of an array, so there are no false alarms;
// an array that is not const counts as written. Other arguments have no bytes.
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
  } else if constexpr (requires { typename Parameter::Element; }) {  // an array type of the program
    using Element = typename Parameter::Element;
    return {Parameter(argument).data(), sizeof(Element), !std::is_const_v<Element>};
  } else {
    return {};
  }
}

// Checks the order of a launch, and that the kernel uses only memory of its own device.
void order_kernel(cudaStream_t stream, const SourceCall& site, std::span<const KernelArgument> arguments);

// Enqueues `call`, a function object that calls `kernel` with its arguments, on `stream`. The kernel has `iterations`
// independent iterations. cudaGetLastError() reports a failure.
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

// Whether oneDNN computes large products.
bool uses_onednn();

}  // namespace workshop::cpu
