// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/ranges.h"

#include <workshop_cpu.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "backend_cpu/order.h"

namespace workshop::cpu {
namespace {

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Whether the bytes [begin, end) overlap a piece of the range. The first piece that ends after `begin` decides.
bool meets(const ByteRange& range, std::uintptr_t begin, std::uintptr_t end) {
  const std::uintptr_t first = address(range.begin);
  if (end <= first || begin >= first + range.extent()) return false;
  const std::size_t piece = begin < first + range.bytes ? 0 : (begin - first - range.bytes) / range.pitch + 1;
  return piece < range.count && first + piece * range.pitch < end;
}

std::string quantity(std::size_t bytes, const ByteRange& range) {
  const std::size_t number = (bytes + range.element - 1) / range.element;
  std::string unit = range.unit;
  if (number == 1) unit.pop_back();
  return std::to_string(number) + " " + unit;
}

std::string at_place(const SourceCall& site) { return site.line == 0 ? "" : " at " + place(site); }

[[noreturn]] void out_of_bounds(const char* call, const ByteRange& range, const std::string& what) {
  end_with_mistake("bounds: " + std::string(range.argument) + " of " + call + at_place(source_call(call)) + " " + what);
}

void check_bounds(const char* call, const ByteRange& range, int device) {
  if (range.count == 0 || range.bytes == 0 || known_to_fit(range.begin, range.extent(), device)) return;
  if (range.begin == nullptr) out_of_bounds(call, range, "is NULL");
  const std::uint64_t releases = released_blocks.load(std::memory_order_acquire);
  const std::optional<MemoryBlock> block = find_block(range.begin);
  if (!block && range.on_device)
    out_of_bounds(call, range, "is memory of the host, or outside of every allocation: no device can reach it");
  if (!block) return;
  if (device != kAnyDevice && !block->is_on(device)) {
    out_of_bounds(call, range,
                  "is memory of device " + std::to_string(block->device) + at_place(block->site) +
                      ", but the call works on device " + std::to_string(device) +
                      ": a device reads and writes its own memory only");
  }
  const std::size_t extent = range.extent();
  const std::uintptr_t begin = address(range.begin), first = address(block->begin), end = first + block->bytes;
  const bool early = begin < first;
  if (!early && begin + extent <= end) {
    known_block(begin) = {first, end, releases, block->on_host ? kAnyDevice : block->device};
    return;
  }
  const std::size_t beyond = early ? first - begin : std::min(begin + extent - end, extent);
  out_of_bounds(call, range,
                "has " + quantity(extent, range) + ", " + quantity(beyond, range) +
                    (early ? " before the beginning" : " beyond the end") + " of its allocation of " +
                    quantity(block->bytes, range) + at_place(block->site));
}

}  // namespace

bool overlap(const ByteRange& a, const ByteRange& b) {
  const auto [few, many] = a.count <= b.count ? std::pair(&a, &b) : std::pair(&b, &a);
  for (std::size_t i = 0; i < few->count; ++i) {
    const std::uintptr_t begin = address(few->begin) + i * few->pitch;
    if (meets(*many, begin, begin + few->bytes)) return true;
  }
  return false;
}

bool covers(const ByteRange& outer, const ByteRange& inner) {
  const std::uintptr_t begin = address(outer.begin), inner_begin = address(inner.begin);
  if (outer.count == 1 || outer.bytes == outer.pitch) {
    return begin <= inner_begin && inner_begin + inner.extent() <= begin + outer.extent();
  }
  return begin == inner_begin && outer.bytes == inner.bytes && outer.pitch == inner.pitch && outer.count == inner.count;
}

void check_bounds(const char* call, std::span<const ByteRange> ranges, int device) {
  for (const ByteRange& range : ranges) check_bounds(call, range, device);
}

void check_call(const char* call, cudaStream_t stream, std::initializer_list<ByteRange> ranges, int device) {
  for (const ByteRange& range : ranges) check_bounds(call, range, device);
  if (checks_order()) order_call({stream, source_call(call), ranges});
}

}  // namespace workshop::cpu
