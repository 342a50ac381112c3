// SPDX-License-Identifier: Apache-2.0
// Calls of CUDA and NCCL that may block the host but need not: with WORKSHOP_BLOCKING=1 they do. A program that relies
// on its host to continue, because a different stream or rank waits for it, then hangs in every run.
#pragma once

#include <cstddef>
#include <vector>

namespace workshop::cpu {

struct GroupedOperation;

bool blocks_host();

// If blocks_host(), waits until the current device is idle. The order checker ignores this wait, because no program may
// rely on it.
void may_wait_for_device();

// Call when a library launches a kernel; `kernel` is a number that identifies it. CUDA loads a kernel at its first
// launch, and may wait for the device then, unless CUDA_MODULE_LOADING is EAGER.
void load_kernel(std::size_t kernel);

// Call when operations are about to be enqueued. If blocks_host(), waits until all ranks of the communicator have
// called a collective too, or until the peer has called its half of the first message between the two. NCCL connects
// ranks, on the host, when they first use an algorithm of a collective or send a message.
void may_wait_for_ranks(const std::vector<GroupedOperation>& operations);

}  // namespace workshop::cpu
