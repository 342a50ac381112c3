// SPDX-License-Identifier: Apache-2.0
// The ledger counts the program's NCCL calls and their data. It knows no operation by name: to add one, see "A new NCCL
// call" in CONTRIBUTING.md.
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/base/place.h"
#include "common/nccl/nccl_calls.h"
#include "common/record/json_lines.h"
#include "common/record/recorder.h"

namespace workshop {
namespace {

using namespace std::string_literals;

struct Calls {
  int ranks = 0;  // of the communicator
  std::uint64_t calls = 0, elements = 0, bytes = 0;
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> places = {};  // file:line -> calls, bytes
  int type = -1;                                                               // of the last call; -1 for a copy
  std::map<std::string, std::string> types = {};                               // file:line -> ncclFloat32
  bool on_host = false;                                                        // a buffer of a call
  int reduction = -1, root = -1;                                               // of the last call; -1: it has none
  std::map<std::string, std::string> with = {};  // file:line -> "ncclAvg", "root 0", "host memory"
};

std::string name_of_reduction(int reduction) {
  static const std::map<int, const char*> kNames = {
      {ncclSum, "ncclSum"}, {ncclProd, "ncclProd"}, {ncclMax, "ncclMax"}, {ncclMin, "ncclMin"}, {ncclAvg, "ncclAvg"}};
  const auto name = kNames.find(reduction);
  return name == kNames.end() ? "" : name->second;
}

const char* name_of_type(int type) {
  static const std::map<int, const char*> kNames = {
      {ncclInt8, "ncclInt8"},       {ncclUint8, "ncclUint8"},     {ncclInt32, "ncclInt32"},
      {ncclUint32, "ncclUint32"},   {ncclInt64, "ncclInt64"},     {ncclUint64, "ncclUint64"},
      {ncclFloat32, "ncclFloat32"}, {ncclFloat64, "ncclFloat64"}, {ncclBfloat16, "ncclBfloat16"}};
  const auto name = kNames.find(type);
  return name == kNames.end() ? "" : name->second;
}

bool is_on_host(const void* buffer) {
  cudaPointerAttributes attributes{};
  return buffer != nullptr && cudaPointerGetAttributes(&attributes, buffer) == cudaSuccess &&
         attributes.type == cudaMemoryTypeHost;
}

class Ledger final : public CallObserver {
 public:
  void enqueued(std::span<const NcclCall> group, ncclResult_t status) override {
    for (const NcclCall& call : group) {
      if (!call.on_record || status != ncclSuccess) continue;
      Calls& calls = calls_[{call.communicator, call.operation, call.site}];
      ++calls.calls;
      calls.elements += call.count;
      calls.bytes += call.bytes();
      calls.type = call.type;
      calls.reduction = call.reduction;
      calls.on_host = calls.on_host || is_on_host(call.buffers[0]) || is_on_host(call.buffers[1]);
      const bool is_message = call.operation == "ncclSend"s || call.operation == "ncclRecv"s;
      calls.root = is_message ? -1 : call.peer;
    }
  }

  // Sums by communicator name and operation. Communicators with the same name are counted together.
  std::map<std::pair<std::string, std::string_view>, Calls> lines() const {
    std::map<std::pair<std::string, std::string_view>, Calls> lines;
    for (const auto& [key, calls] : calls_) {
      const auto& [communicator, operation, site] = key;
      Calls& line = lines[{communicator->name, operation}];
      line.ranks = communicator->ranks;
      line.calls += calls.calls;
      line.elements += calls.elements;
      line.bytes += calls.bytes;
      if (site == nullptr) continue;
      auto& [calls_there, bytes_there] = line.places[place(site)];
      calls_there += calls.calls;
      bytes_there += calls.bytes;
      if (calls.type >= 0) line.types[place(site)] = name_of_type(calls.type);
      std::string with = name_of_reduction(calls.reduction);
      if (calls.root >= 0) with += (with.empty() ? "root " : ", root ") + std::to_string(calls.root);
      if (calls.on_host) with += with.empty() ? "host memory" : ", host memory";
      if (!with.empty()) line.with[place(site)] = with;
    }
    return lines;
  }

  // Enters the copy under a pseudo-communicator, the pair of devices.
  void count_copy(int from, int to, std::size_t bytes) {
    static auto& pairs = *new std::map<std::pair<int, int>, Communicator>;
    auto& pair = pairs[{from, to}];
    pair.name = "device " + std::to_string(from) + " to " + std::to_string(to);
    pair.ranks = 2;
    Calls& calls = calls_[{&pair, "cudaMemcpyPeerAsync", InCall::current()}];
    ++calls.calls;
    calls.elements += bytes;
    calls.bytes += bytes;
  }

 private:
  std::map<std::tuple<const Communicator*, std::string_view, const CallSite*>, Calls> calls_;
};

Ledger& ledger() {
  static Ledger ledger;
  return ledger;
}

}  // namespace

void start_ledger() { observe_calls(ledger()); }

void count_copy(int from, int to, std::size_t bytes) { ledger().count_copy(from, to, bytes); }

void record_ledger(int rank) {
  for (const auto& [key, line] : ledger().lines()) {
    record_line({{"type", "collective"},
                 {"rank", rank},
                 {"op", key.second},
                 {"communicator", key.first},
                 {"ranks", line.ranks},
                 {"calls", line.calls},
                 {"elements", line.elements},
                 {"bytes", line.bytes},
                 {"places", line.places},
                 {"types", line.types},
                 {"with", line.with}});
  }
}

}  // namespace workshop
