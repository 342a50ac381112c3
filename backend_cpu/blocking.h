// SPDX-License-Identifier: Apache-2.0
// What may block the host with CUDA and NCCL, and does not need to: with WORKSHOP_BLOCKING=1 it does. A program that
// counts on the host to go on, for another stream or another rank waits for it, then hangs in every run.
#pragma once

#include <cstddef>
#include <vector>

namespace workshop::cpu {

struct GroupedOperation;

bool blocks_host();

// Where blocks_host(), waits until the current device has nothing to do. The order checker takes it for no wait: no
// program may count on it.
void may_wait_for_device();

// A kernel of a library is launched; `kernel` is a number of its own. The first time CUDA loads it, and may wait for
// the device, unless CUDA_MODULE_LOADING is EAGER.
void load_kernel(std::size_t kernel);

// The ranks of NCCL's operations, which are about to be enqueued: where blocks_host(), waits until all ranks of the
// communicator have called a collective too, and the peer the first send or receive between the two. NCCL connects
// ranks where they first use a way of a collective, or send a message, and does it on the host.
void may_wait_for_ranks(const std::vector<GroupedOperation>& operations);

}  // namespace workshop::cpu
