// SPDX-License-Identifier: Apache-2.0
// Counts the memory that a rank holds, by purpose.
#pragma once

#include <array>
#include <cstddef>
#include <map>

namespace workshop {

// The purpose of a buffer. The run record contains the peak of each kind, which is compared with the chapter's formula.
// `host` is pinned host memory for any purpose; all other kinds are device memory.
enum class Memory { parameters, gradients, optimizer, activations, buckets, data, host };
inline constexpr std::array kMemoryKinds = {"parameters", "gradients", "optimizer", "activations",
                                            "buckets",    "data",      "host"};

struct MemoryUse {
  std::size_t current = 0;  // bytes
  std::size_t peak = 0;     // bytes
};

// Returns this rank's use of one kind on the current device. Different kinds may peak at different times.
MemoryUse memory_use(Memory kind);

// For buffers on a GPU: in a check (WORKSHOP_JOURNAL), fills new memory with NaN, as the cpu backend always does, so
// that the check notices what a program has not written. Does nothing otherwise, because it takes time.
void fill_in_checks(void* memory, std::size_t bytes, Memory kind);

// For buffers: counts an allocation, or a release if `bytes` is negative.
void account_memory(Memory kind, int device, std::ptrdiff_t bytes);

// The use of each kind, for every device that this process has used.
using MemoryUses = std::array<MemoryUse, kMemoryKinds.size()>;
const std::map<int, MemoryUses>& memory_uses();

// From now on, calls `changed` after every allocation and release; `bytes` is what the device then holds of that kind.
void watch_memory(void (*changed)(Memory kind, int device, std::size_t bytes));

}  // namespace workshop
