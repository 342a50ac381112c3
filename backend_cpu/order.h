// SPDX-License-Identifier: Apache-2.0
// The order checker: finds two uses of the same memory that nothing orders, on any streams.
//
// Each stream and the host have a vector clock: how much work of every stream must be done before their next operation.
// Clocks are passed on when work is enqueued, when an event is recorded or waited for, when the host waits, and by a
// group of NCCL calls. All this happens when the program makes its calls, in program order, so the findings do not
// depend on how fast anything runs. WORKSHOP_ORDER=1 turns the checker on.
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

// Checks calls that are about to be enqueued. They count as one operation on all of their streams. If they have a
// communicator, this operation comes after the previous operations of the communicator. Ends the program if they use
// the same memory as an earlier operation, and nothing orders the two.
void order_calls(std::span<const OrderedCall> calls, const void* communicator = nullptr);
inline void order_call(const OrderedCall& call) { order_calls({&call, 1}); }
// These functions tell the checker about calls that order other work, such as records of events and waits. They do
// nothing unless checks_order().
void order_stream_created(cudaStream_t stream, bool blocking);
void order_stream_destroyed(cudaStream_t stream);
void order_event_created(cudaEvent_t event);
void order_event_recorded(cudaEvent_t event, cudaStream_t stream);
void order_stream_waits(cudaStream_t stream, cudaEvent_t event);
void order_host_waits(cudaStream_t stream);
void order_host_waits(cudaEvent_t event);
void order_host_waits_for_device(int device);  // or for all devices (kAllDevices)
// A cudaEventQuery() or cudaStreamQuery() that reports finished work counts as a wait of the host only on the thread of
// main(), because other threads only watch the program.
bool on_main_thread();

// Forgets the uses of memory that is freed.
void order_forget(const MemoryBlock& block);

}  // namespace workshop::cpu
