// SPDX-License-Identifier: Apache-2.0
// The order checker: does anything order two uses of the same memory, on whichever streams they are?
//
// Each stream and the host have a vector clock: how far the work of every stream must have come before theirs goes on.
// To enqueue, to record an event and wait for it, to wait on the host, and a group of NCCL calls hand clocks on. All
// that happens when the program makes its calls, in the order of the program, so what is found does not depend on how
// fast anything runs. WORKSHOP_ORDER=1 turns it on.
#pragma once

#include <cuda_runtime.h>
#include <workshop_cpu.h>

#include <span>
#include <vector>

#include "backend_cpu/ranges.h"

namespace workshop::cpu {

// A call with the memory that it uses.
struct OrderedCall {
  cudaStream_t stream;
  SourceCall site;
  std::vector<ByteRange> ranges;
};

// The calls are enqueued, as one operation on all of their streams, behind those of the same communicator, if they have
// one. Ends the program if they use what an operation before them uses with no order between the two.
void order_calls(std::span<const OrderedCall> calls, const void* communicator = nullptr);
inline void order_call(const OrderedCall& call) { order_calls({&call, 1}); }
// What passes order on. Each does nothing unless checks_order().
void order_stream_created(cudaStream_t stream, bool blocking);
void order_stream_destroyed(cudaStream_t stream);
void order_event_created(cudaEvent_t event);
void order_event_recorded(cudaEvent_t event, cudaStream_t stream);
void order_stream_waits(cudaStream_t stream, cudaEvent_t event);
void order_host_waits(cudaStream_t stream);
void order_host_waits(cudaEvent_t event);
void order_host_waits_for_device(int device);  // or for all of them
// An answer that work is done counts for the thread of main(): other threads look after the program.
bool on_main_thread();

// Freed memory is used no more.
void order_forget(const MemoryBlock& block);

}  // namespace workshop::cpu
