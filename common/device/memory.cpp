// SPDX-License-Identifier: Apache-2.0
#include "common/device/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "common/base/check.h"

namespace workshop {
namespace {

// Never destroyed, because buffers in static objects are freed at the very end.
std::map<int, MemoryUses>& uses() {
  static auto& uses = *new std::map<int, MemoryUses>;
  return uses;
}

void (*watcher)(Memory kind, int device, std::size_t bytes) = nullptr;

}  // namespace

MemoryUse memory_use(Memory kind) {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  return uses()[device][static_cast<int>(kind)];
}

void fill_in_checks(void* memory, std::size_t bytes, Memory kind) {
  static const bool in_check = std::getenv("WORKSHOP_JOURNAL") != nullptr;
  constexpr int kNan = 0xff;  // of each byte of a float or a bfloat16
  if (!in_check) return;
  if (kind == Memory::host) {
    std::memset(memory, kNan, bytes);
  } else {
    CUDA_CHECK(cudaMemset(memory, kNan, bytes));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));  // the programs' streams do not wait for this one
  }
}

void account_memory(Memory kind, int device, std::ptrdiff_t bytes) {
  MemoryUse& use = uses()[device][static_cast<int>(kind)];
  use.current += static_cast<std::size_t>(bytes);
  use.peak = std::max(use.peak, use.current);
  if (watcher != nullptr) watcher(kind, device, use.current);
}

const std::map<int, MemoryUses>& memory_uses() { return uses(); }

void watch_memory(void (*changed)(Memory kind, int device, std::size_t bytes)) { watcher = changed; }

}  // namespace workshop
