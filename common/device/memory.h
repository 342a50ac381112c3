// SPDX-License-Identifier: Apache-2.0
// How much memory a rank holds, by what it is for.
#pragma once

#include <array>
#include <cstddef>
#include <map>

namespace workshop {

// What a buffer is for. The peak of each kind goes to the run record and is compared with the README's formula. All are
// device memory but `host`, which is pinned memory of the host, whatever it is for.
enum class Memory { parameters, gradients, optimizer, activations, buckets, data, host };
inline constexpr std::array kMemoryKinds = {"parameters", "gradients", "optimizer", "activations",
                                            "buckets",    "data",      "host"};

struct MemoryUse {
  std::size_t current = 0;  // bytes
  std::size_t peak = 0;     // bytes
};

// Use of one kind by this rank on the current device. Peaks of several kinds may lie at different times.
MemoryUse memory_use(Memory kind);

// Called by the buffers; `bytes` is negative for a release.
void account_memory(Memory kind, int device, std::ptrdiff_t bytes);

// The use of each kind, by device, of all devices that this process has used.
using MemoryUses = std::array<MemoryUse, kMemoryKinds.size()>;
const std::map<int, MemoryUses>& memory_uses();

// Calls `changed` from here on whenever a device holds more or less of a kind: how many bytes there are now.
void watch_memory(void (*changed)(Memory kind, int device, std::size_t bytes));

}  // namespace workshop
