// SPDX-License-Identifier: Apache-2.0
// The ledger: how often the program makes each NCCL call, and with how much data.
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "common/record/recorder.h"
#include "common/run/nccl_calls.h"

namespace workshop {
namespace {

struct Calls {
  int ranks = 0;  // of the communicator
  std::uint64_t calls = 0, elements = 0, bytes = 0;
};

constexpr std::array kBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclInt8 … ncclFloat8e5m2

class Ledger : public CallObserver {
 public:
  void enqueued(std::span<const NcclCall> group, ncclResult_t status) override {
    for (const NcclCall& call : group) {
      if (!call.on_record || status != ncclSuccess) continue;
      Calls& calls = calls_[{call.communicator, call.operation}];
      ++calls.calls;
      calls.elements += call.count;
      calls.bytes += call.count * kBytes.at(call.type);
    }
  }

  // By communicator's name and operation: communicators of one name are one.
  std::map<std::pair<std::string, std::string_view>, Calls> lines() const {
    std::map<std::pair<std::string, std::string_view>, Calls> lines;
    for (const auto& [key, calls] : calls_) {
      Calls& line = lines[{key.first->name, key.second}];
      line.ranks = key.first->ranks;
      line.calls += calls.calls;
      line.elements += calls.elements;
      line.bytes += calls.bytes;
    }
    return lines;
  }

 private:
  std::map<std::pair<const Communicator*, std::string_view>, Calls> calls_;
};

Ledger& ledger() {
  static Ledger ledger;
  return ledger;
}

}  // namespace

void start_ledger() { observe_calls(ledger()); }

void record_ledger(int rank) {
  for (const auto& [key, line] : ledger().lines()) {
    record_line({{"type", "collective"},
                 {"rank", rank},
                 {"op", key.second},
                 {"communicator", key.first},
                 {"ranks", line.ranks},
                 {"calls", line.calls},
                 {"elements", line.elements},
                 {"bytes", line.bytes}});
  }
}

}  // namespace workshop
