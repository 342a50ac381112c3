// SPDX-License-Identifier: Apache-2.0
#include "checker/traffic.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "common/base/format.h"

namespace workshop::tools {
namespace {

struct Traffic {
  double calls = 0, bytes = 0;
  bool operator==(const Traffic&) const = default;
};
using Operation = std::pair<std::string, std::string>;  // NCCL function, communicator
struct Both {
  Traffic expected, mine;
};

std::string number(double value) { return formatted("%.7g", value); }

void add(Traffic& traffic, double calls, double bytes) {
  traffic.calls += calls;
  traffic.bytes += bytes;
}

// Lists the operations that differ, each for the first rank that differs, because usually all differ alike.
std::string differences(const RunRecord& expected, const RunRecord& mine) {
  std::map<Operation, std::map<int, Both>> ledger;
  for (const Collective& c : expected.collectives)
    add(ledger[{c.op, c.communicator}][c.rank].expected, c.calls, c.bytes);
  for (const Collective& c : mine.collectives) add(ledger[{c.op, c.communicator}][c.rank].mine, c.calls, c.bytes);
  std::string lines;
  for (const auto& [operation, by_rank] : ledger) {
    for (const auto& [rank, both] : by_rank) {
      if (both.mine == both.expected) continue;
      const bool is_copy = operation.second.starts_with("device ");  // "device 0 to 1"
      lines += "  your " + operation.first +
               (is_copy ? " from " + operation.second : " on communicator '" + operation.second + "'") + " is called " +
               number(both.mine.calls) + (both.mine.calls == 1 ? " time on rank " : " times on rank ") +
               std::to_string(rank) + ", expected " + number(both.expected.calls) + "; with " +
               number(both.mine.bytes) + " bytes, expected " + number(both.expected.bytes) + "\n";
      break;
    }
  }
  return lines;
}

using ByTodo = std::map<std::string, std::map<Operation, Both>, TodoOrder>;

// The calls of each TODO, of all ranks or of one.
ByTodo calls_by_todo(const RunRecord& expected, const RunRecord& mine, const Todos& todos, std::optional<int> rank) {
  ByTodo by_todo;
  for (const bool is_mine : {false, true}) {
    for (const Collective& c : is_mine ? mine.collectives : expected.collectives) {
      if (rank && c.rank != *rank) continue;
      for (const auto& [name, calls] : c.places) {
        for (const Place& place : places(name)) {
          const std::string id = is_mine ? todos.at(place) : todos.at_in_solution(place);
          if (id.empty()) continue;
          Both& both = by_todo[id][{c.op, c.communicator}];
          add(is_mine ? both.mine : both.expected, calls.first, calls.second);
        }
      }
    }
  }
  return by_todo;
}

// The first TODO whose calls differ.
std::string differing_todo(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  for (const auto& [id, operations] : calls_by_todo(expected, mine, todos, std::nullopt)) {
    for (const auto& [operation, both] : operations) {
      if (!(both.mine == both.expected)) return id;
    }
  }
  return "";
}

Traffic in_all(const RunRecord& record) {
  Traffic traffic;
  for (const Collective& c : record.collectives) add(traffic, c.calls, bytes_sent(c));
  return traffic;
}

}  // namespace

std::string calls_of(const std::string& todo, int rank, const RunRecord& expected, const RunRecord& mine,
                     const Todos& todos) {
  if (!mine.complete) return "";
  const ByTodo by_todo = calls_by_todo(expected, mine, todos, rank);
  const auto calls = by_todo.find(todo);
  if (calls == by_todo.end()) return "";
  std::string yours, theirs;
  bool differ = false;
  for (const auto& [operation, both] : calls->second) {
    const auto add_to = [&](std::string& list, const Traffic& traffic) {
      if (traffic.calls == 0) return;
      list += (list.empty() ? "" : ", ") + operation.first + " " + number(traffic.calls) +
              (traffic.calls == 1 ? " time, " : " times, ") + number(traffic.bytes) + " bytes in all";
    };
    add_to(yours, both.mine);
    add_to(theirs, both.expected);
    differ = differ || !(both.mine == both.expected);
  }
  if (!differ || yours == theirs) return "";  // equal: on other communicators
  return "  Its NCCL calls on rank " + std::to_string(rank) + ": yours " + (yours.empty() ? "none" : yours) +
         "; expected " + (theirs.empty() ? "none" : theirs) + "\n";
}

std::string differing_roots(const std::string& todo, const RunRecord& mine, const Todos& todos) {
  std::map<std::pair<std::string, std::string>, std::map<int, std::string>> roots;  // of each call, by rank
  for (const Collective& c : mine.collectives) {
    if (c.ranks != mine.world) continue;  // other groups have roots of their own
    for (const auto& [name, with] : c.with) {
      for (const Place& place : places(name)) {
        const std::size_t at = with.find("root ");
        if (at != std::string::npos && todos.at(place) == todo) roots[{c.op, name}][c.rank] = with.substr(at + 5);
      }
    }
  }
  for (const auto& [call, by_rank] : roots) {
    const auto other =
        std::ranges::find_if(by_rank, [&](const auto& r) { return r.second != by_rank.begin()->second; });
    if (other == by_rank.end()) continue;
    return "  Your ranks name different roots in " + call.first + " at " + call.second + ": rank " +
           std::to_string(by_rank.begin()->first) + " names " + by_rank.begin()->second + ", rank " +
           std::to_string(other->first) + " names " + other->second +
           ". A call has one root, the same on all ranks. With NCCL, such a call may also hang.\n";
  }
  return "";
}

std::string other_reductions(const std::string& todo, const RunRecord& expected, const RunRecord& mine,
                             const Todos& todos) {
  const auto reduction = [](const std::string& with) { return with.starts_with("nccl") ? with.substr(0, 8) : ""; };
  std::set<std::string> theirs;
  for (const Collective& c : expected.collectives) {
    for (const auto& [name, with] : c.with) {
      for (const Place& place : places(name)) {
        if (todos.at_in_solution(place) == todo) theirs.insert(reduction(with));
      }
    }
  }
  for (const Collective& c : mine.collectives) {
    for (const auto& [name, with] : c.with) {
      for (const Place& place : places(name)) {
        const std::string yours = reduction(with);
        if (yours.empty() || todos.at(place) != todo || theirs.contains(yours)) continue;
        return "  Your " + c.op + " at " + name + " combines the ranks' values with " +
               yours.substr(0, yours.find(',')) + ". Is this the right operation?\n";
      }
    }
  }
  return "";
}

std::string notes_on_host_memory(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  std::string notes;
  TodoIds done;
  for (const bool is_mine : {false, true}) {
    for (const Collective& c : (is_mine ? mine : expected).collectives) {
      for (const auto& [name, with] : c.with) {
        if (!with.ends_with("host memory")) continue;
        for (const Place& place : places(name)) {
          const std::string todo = is_mine ? todos.at(place) : todos.at_in_solution(place);
          if (todo.empty() || !done.insert(todo).second || !is_mine) continue;
          notes += "Note: " + called(todo) + " hands memory of the host to " + c.op + " at " + name +
                   ", the solution memory of the device. NCCL can reach pinned memory, but all that it reads and "
                   "writes there goes over the bus between host and device, at each step of its algorithm.\n";
        }
      }
    }
  }
  return notes;
}

namespace {

int bytes_of(const std::string& type) {
  const std::size_t digits = type.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : std::stoi(type.substr(digits)) / 8;
}

// Calls of a type with the same number of bytes as the solution's: the same bits arrive, but the numbers are of another
// type. Bytes are no such type: who counts in bytes says so.
TrafficVerdict compare_types(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  std::map<std::pair<std::string, std::string>, std::set<std::string>> theirs;  // of each TODO and operation
  for (const Collective& c : expected.collectives) {
    for (const auto& [name, type] : c.types) {
      for (const Place& place : places(name)) theirs[{todos.at_in_solution(place), c.op}].insert(type);
    }
  }
  for (const Collective& c : mine.collectives) {
    for (const auto& [name, type] : c.types) {
      for (const Place& place : places(name)) {
        const std::string todo = todos.at(place);
        const auto types = theirs.find({todo, c.op});
        if (todo.empty() || types == theirs.end() || types->second.contains(type) || bytes_of(type) == 1) continue;
        const auto alike = std::ranges::find(types->second, bytes_of(type), bytes_of);
        if (alike == types->second.end()) continue;
        return {todos.heading(todo) + ": The numbers are right, but their type is not:\n" + todos.place_line(todo) +
                    "  your " + c.op + " at " + name + " has " + type + ", expected " + *alike +
                    ". Both have as many bytes, so the same bits arrive. A reduction would be wrong.\n",
                todo, true};
      }
    }
  }
  return {};
}

}  // namespace

TrafficVerdict compare_traffic(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  const std::string lines = differences(expected, mine);
  if (lines.empty()) return compare_types(expected, mine, todos);
  TrafficVerdict verdict{lines, differing_todo(expected, mine, todos)};
  const Traffic theirs = in_all(expected), yours = in_all(mine);
  const auto todo = todos.all().find(verdict.todo);
  const auto asks_for = [&](const char* calls) {
    return todo != todos.all().end() && todo->second.whole_text.find(calls) != std::string::npos;
  };
  const bool one_call = asks_for("ne NCCL call"), two_calls = asks_for("two NCCL calls");
  const bool more = yours.bytes > theirs.bytes * (1 + 1e-9);
  verdict.wrong = more || (one_call && yours.calls > theirs.calls) || (two_calls && yours.calls < theirs.calls);
  const std::string subject = verdict.todo.empty() ? "" : todos.heading(verdict.todo) + ": ";
  if (!verdict.wrong) {
    verdict.text = "Note: " + subject + "different calls, which give the same numbers. ";
    // Copies between the devices of one process are sent by no rank.
    if (yours.bytes > 0 || theirs.bytes > 0) {
      verdict.text +=
          "In all, your ranks send " + number(yours.bytes) + " bytes, the solution's " + number(theirs.bytes) + ". ";
    }
    verdict.text += "The bytes below are those of the calls' counts:\n" + lines;
    return verdict;
  }
  verdict.text = subject + "The numbers are right, but the traffic is not:\n" + todos.place_line(verdict.todo) + lines;
  if (more) {
    verdict.text +=
        "  In all, your ranks send " + number(yours.bytes) + " bytes, expected " + number(theirs.bytes) + ".\n";
  } else {
    verdict.text += std::string("  Your ranks send no more bytes, but the " + todos.kind() + " asks for ") +
                    (one_call ? "one NCCL call" : "two NCCL calls") + ".\n";
  }
  return verdict;
}

}  // namespace workshop::tools
