// SPDX-License-Identifier: Apache-2.0
// The memory that calls of CUDA, cuBLAS and NCCL read and write, and the check of its bounds.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend_cpu/source_calls.h"

namespace workshop::cpu {

// The memory of one argument of a call: `count` pieces of `bytes`, each one `pitch` bytes after the previous one, so
// that part of a matrix can be distinguished from its neighbors.
struct ByteRange {
  const char* argument;  // "recvbuff"
  const void* begin;
  std::size_t bytes;
  bool writes;
  std::size_t element = 1;  // bytes of one element, in which the caller counts
  const char* unit = "bytes";
  std::size_t count = 1, pitch = 0;
  bool on_device = false;  // whether a device must reach it

  std::size_t extent() const { return (count - 1) * pitch + bytes; }
};

bool overlap(const ByteRange& a, const ByteRange& b);

// Returns true if `outer` certainly has all bytes of `inner`; false if that is not easy to tell.
bool covers(const ByteRange& outer, const ByteRange& inner);

// Memory that cudaMalloc or cudaMallocHost has returned, and the place in the program.
struct MemoryBlock {
  const std::byte* begin;
  std::size_t bytes;
  SourceCall site;
  int device;  // the current one when it was allocated
  bool on_host;

  bool is_on(int other) const { return on_host || device == other; }
};

// Number of bytes on each side of a block that belong to no block.
inline constexpr std::size_t kGuardBytes = 256;

// Returns the block that contains `address` or is next to it; none for other memory of the host.
std::optional<MemoryBlock> find_block(const void* address);

// Number of blocks freed so far.
inline std::atomic<std::uint64_t> released_blocks = 0;

// Ends the program if a range is NULL, runs out of its block, or is on a device other than `device`. Host memory that
// CUDA has not allocated is not checked, unless a device must reach it.
inline constexpr int kAnyDevice = -1;
void check_bounds(const char* call, std::span<const ByteRange> ranges, int device = kAnyDevice);

// A cache of the blocks that a thread has looked up: a training step repeats most calls of the previous one. An entry
// is valid only as long as no block has been freed.
struct KnownBlock {
  std::uintptr_t begin = 1, end = 0;
  std::uint64_t releases = 0;
  int device = 0;  // kAnyDevice for memory of the host
};
inline constexpr int kKnownBits = 9;
inline thread_local constinit std::array<KnownBlock, 1 << kKnownBits> known_blocks = {};

// Returns the cache entry of an address, by Fibonacci hashing: it spreads addresses that differ in a few middle bits.
inline KnownBlock& known_block(std::uint64_t address) {
  return known_blocks[address * 0x9e3779b97f4a7c15 >> (64 - kKnownBits)];
}

// Returns true if this thread has already found that the range is within its block.
inline bool known_to_fit(const void* pointer, std::size_t bytes, int device) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const KnownBlock& known = known_block(begin);
  return known.releases == released_blocks.load(std::memory_order_acquire) && known.begin <= begin &&
         begin + bytes <= known.end && (device == kAnyDevice || known.device == kAnyDevice || known.device == device);
}

// Checks the bounds and, if the order checker is on, the order of a call that is about to be enqueued.
void check_call(const char* call, cudaStream_t stream, std::initializer_list<ByteRange> ranges,
                int device = kAnyDevice);

}  // namespace workshop::cpu
