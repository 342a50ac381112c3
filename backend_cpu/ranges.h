// SPDX-License-Identifier: Apache-2.0
// What the calls of CUDA, cuBLAS and NCCL say about the memory that they read and write, and whether it is theirs.
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

// The memory behind one argument of a call: `count` pieces of `bytes`, the next `pitch` bytes behind the one before, so
// that a part of the columns of a matrix is told from its neighbors.
struct ByteRange {
  const char* argument;  // "recvbuff"
  const void* begin;
  std::size_t bytes;
  bool writes;
  std::size_t element = 1;  // bytes of what the caller counts
  const char* unit = "bytes";
  std::size_t count = 1, pitch = 0;
  bool on_device = false;  // a device has to reach it

  std::size_t extent() const { return (count - 1) * pitch + bytes; }
};

bool overlap(const ByteRange& a, const ByteRange& b);

// Certain that `outer` has all bytes of `inner`; false where it takes more than a look.
bool covers(const ByteRange& outer, const ByteRange& inner);

// What cudaMalloc or cudaMallocHost has returned, and where in the program.
struct MemoryBlock {
  const std::byte* begin;
  std::size_t bytes;
  SourceCall site;
  int device;  // that was current
  bool on_host;

  bool is_on(int other) const { return on_host || device == other; }
};

// The bytes on both sides of a block that belong to no block.
inline constexpr std::size_t kGuardBytes = 256;

// The block in which `address` lies, or next to which; none for other memory of the host.
std::optional<MemoryBlock> find_block(const void* address);

// How many blocks have been freed so far.
inline std::atomic<std::uint64_t> released_blocks = 0;

// Ends the program if a range is NULL, leaves its block, or lies on another device than this one. Host memory that CUDA
// has not allocated is not judged, unless a device has to reach it.
inline constexpr int kAnyDevice = -1;
void check_bounds(const char* call, std::span<const ByteRange> ranges, int device = kAnyDevice);

// The blocks that a thread has looked up: most calls of a training step are made again in the next one. Memory that was
// freed since then may be another block's.
struct KnownBlock {
  std::uintptr_t begin = 1, end = 0;
  std::uint64_t releases = 0;
  int device = 0;  // kAnyDevice for memory of the host
};
inline constexpr int kKnownBits = 9;
inline thread_local constinit std::array<KnownBlock, 1 << kKnownBits> known_blocks = {};

// The place of an address there, by Fibonacci hashing: it spreads addresses that differ in a few bits in the middle.
inline KnownBlock& known_block(std::uint64_t address) {
  return known_blocks[address * 0x9e3779b97f4a7c15 >> (64 - kKnownBits)];
}

// True where this thread has found before that such a range is within its block.
inline bool known_to_fit(const void* pointer, std::size_t bytes, int device) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const KnownBlock& known = known_block(begin);
  return known.releases == released_blocks.load(std::memory_order_acquire) && known.begin <= begin &&
         begin + bytes <= known.end && (device == kAnyDevice || known.device == kAnyDevice || known.device == device);
}

// Checks the bounds and, where asked for, the order of a call that is about to be enqueued.
void check_call(const char* call, cudaStream_t stream, std::initializer_list<ByteRange> ranges,
                int device = kAnyDevice);

}  // namespace workshop::cpu
