// SPDX-License-Identifier: Apache-2.0
// The memory that NCCL's operations use, and the check of its order.
#include <algorithm>

#include "backend_cpu/nccl_operations.h"
#include "backend_cpu/order.h"

namespace workshop::cpu {

std::array<ByteRange, 2> ranges_of(const Operation& o) {
  const bool is_root = o.comm->rank == o.root;
  const auto all = static_cast<std::size_t>(o.comm->size);
  std::size_t parts_from = 1, parts_to = 1;
  switch (o.kind) {
    case Kind::broadcast:
      parts_from = is_root;
      parts_to = !is_root || o.to != o.from;
      break;
    case Kind::reduce:
      parts_to = is_root;
      break;
    case Kind::all_reduce:
      break;
    case Kind::reduce_scatter:
      parts_from = all;
      break;
    case Kind::all_gather:
      parts_to = all;
      break;
    case Kind::all_to_all:
      parts_from = parts_to = all;
      break;
    case Kind::gather:
      parts_to = is_root ? all : 0;
      break;
    case Kind::scatter:
      parts_from = is_root ? all : 0;
      break;
    case Kind::send:
      parts_to = 0;
      break;
    case Kind::receive:
      parts_from = 0;
      break;
  }
  const std::size_t element = element_size(o.type), bytes = o.count * element;
  const char* unit = o.type == ncclFloat32 ? "floats" : "elements";
  constexpr bool kOnDevice = true;  // ranges.cpp refuses host memory
  return {ByteRange{"sendbuff", o.from, parts_from * bytes, false, element, unit, 1, 0, kOnDevice},
          ByteRange{"recvbuff", o.to, parts_to * bytes, true, element, unit, 1, 0, kOnDevice}};
}

const void* part(const void* buffer, const Operation& o, int rank) {
  return static_cast<const std::byte*>(buffer) + static_cast<std::size_t>(rank) * o.count * element_size(o.type);
}

bool overlaps_itself(const Operation& o) {
  const auto [from, to] = ranges_of(o);
  if (from.bytes == 0 || to.bytes == 0 || !overlap(from, to)) return false;
  switch (o.kind) {
    case Kind::all_gather:
    case Kind::gather:
      return o.from != part(o.to, o, o.comm->rank);
    case Kind::reduce_scatter:
    case Kind::scatter:
      return o.to != part(o.from, o, o.comm->rank);
    default:
      return o.from != o.to;
  }
}

void check_in_place(const Operation& o, const char* function) {
  if (!checks_order() || !overlaps_itself(o)) return;
  const bool gathers = o.kind == Kind::all_gather || o.kind == Kind::gather;
  const bool scatters = o.kind == Kind::reduce_scatter || o.kind == Kind::scatter;
  const SourceCall site = source_call(function);
  const std::string in_place = scatters  ? "recvbuff is sendbuff + rank * recvcount"
                               : gathers ? "sendbuff is recvbuff + rank * sendcount"
                                         : "they are equal";
  end_with_mistake(
      "order: " + (site.line == 0 ? "" : place(site) + " ") + "(" + function + " of " + std::to_string(o.count) + " " +
      ranges_of(o)[0].unit +
      ") reads and writes the same memory in one call: sendbuff and recvbuff overlap and are not in place, " +
      "for which " + in_place);
}

// NCCL orders the calls of a communicator, and all streams of a group. With one rank, there is nothing to send: each
// collective is a copy on its own stream, ordered with nothing else.
void check_order(const std::vector<GroupedOperation>& grouped) {
  const auto copies = [](const Operation& o) { return o.comm->size == 1 && is_collective(o.kind); };
  const auto ordered = [](const GroupedOperation& of) {
    const auto ranges = ranges_of(of.operation);
    return OrderedCall{of.stream, of.site, {ranges.begin(), ranges.end()}};
  };
  std::vector<const ncclComm*> done;
  for (const GroupedOperation& first : grouped) {
    const ncclComm* comm = first.operation.comm;
    if (copies(first.operation)) {
      order_call(ordered(first));
      continue;
    }
    if (std::find(done.begin(), done.end(), comm) != done.end()) continue;
    done.push_back(comm);
    std::vector<OrderedCall> calls;
    for (const GroupedOperation& other : grouped) {
      if (other.operation.comm == comm && !copies(other.operation)) calls.push_back(ordered(other));
    }
    order_calls(calls, comm);
  }
}

}  // namespace workshop::cpu
