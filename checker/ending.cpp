// SPDX-License-Identifier: Apache-2.0
#include "checker/ending.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

namespace workshop::tools {
namespace {

constexpr int kTimedOut = 124;              // exit status of tools/launch
constexpr std::size_t kQuotedLines = 20;    // at most
constexpr std::size_t kQuotedLength = 600;  // bytes of a line

// Recognizes Open MPI's lines: "[host:1234] …", and the lines of dashes around a note.
bool of_open_mpi(const std::string& line) {
  if (line.size() > 20 && line.find_first_not_of('-') == std::string::npos) return true;
  const std::size_t end = line.find(']');
  if (line.empty() || line[0] != '[' || end == std::string::npos) return false;
  const std::size_t colon = line.rfind(':', end);
  return colon != std::string::npos && colon + 1 < end &&
         std::all_of(line.begin() + static_cast<std::ptrdiff_t>(colon) + 1,
                     line.begin() + static_cast<std::ptrdiff_t>(end),
                     [](unsigned char c) { return std::isdigit(c) || c == ','; });
}

std::string shortened(const std::string& line) {
  if (line.size() <= kQuotedLength) return line;
  std::size_t end = kQuotedLength;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;  // do not split a UTF-8 character
  return line.substr(0, end) + " …";
}

std::string listed(const std::vector<std::string>& lines, std::size_t most) {
  std::string text;
  for (std::size_t i = lines.size() - std::min(lines.size(), most); i < lines.size(); ++i)
    text += "    " + shortened(lines[i]) + "\n";
  return text;
}

// The TODOs that contain the places that these lines name.
std::vector<std::string> todos_at(const std::vector<std::string>& lines, const Todos& todos) {
  std::vector<std::string> found;
  for (const std::string& line : lines) {
    for (const Place& place : places(line)) {
      const std::string id = todos.at(place);
      if (!id.empty()) found.push_back(id);
    }
  }
  return found;
}

// Finds "see TODO 02.6" or "see WRITE 02.A", which a program prints when it finds the result wrong.
std::string named(const std::vector<std::string>& lines, const Todos& todos) {
  for (const std::string& line : lines) {
    for (const std::string word : {"TODO ", "WRITE "}) {
      for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
        const std::size_t first = at + word.size();
        const std::size_t last = line.find_first_not_of("0123456789.ABCDEFGHIJKLMNOPQRSTUVWXYZ", first);
        const std::string id = todos.region_of(line.substr(first, last - first));
        if (todos.contains(id)) return id;
      }
    }
  }
  return "";
}

// Ranks launch calls of several communicators in different orders: this line names calls, not uses of memory.
bool of_launches(const std::string& order) { return order.starts_with("order: ranks launch "); }

// Whether the solution records or awaits an event there.
bool orders_streams(const Todo& todo) {
  return todo.code_in_solution.find("cudaStreamWaitEvent(") != std::string::npos ||
         todo.code_in_solution.find("cudaEventRecord(") != std::string::npos;
}

// The TODO that should order the work of `id` with other work: `id` itself, or the one TODO that calls its function and
// orders streams. If there are several, `next` if it is one of them.
std::string orderer(const std::string& id, const Todos& todos, const std::string& next) {
  if (id.empty() || orders_streams(todos.all().at(id))) return id;
  std::vector<std::string> callers;
  for (const auto& [caller, todo] : todos.all()) {
    if (todos.calls(caller, id) && orders_streams(todo)) callers.push_back(caller);
  }
  if (callers.size() == 1) return callers.front();
  return std::ranges::find(callers, next) != callers.end() ? next : id;
}

// The TODO that records an event in the solution and not in this code; "" if there is none, or if there are several.
std::string without_its_record(const Todos& todos) {
  constexpr std::string_view kRecord = "cudaEventRecord(";
  TodoIds found;
  for (const auto& [id, todo] : todos.all()) {
    const std::string& solution = todo.code_in_solution;
    for (std::size_t at = 0; (at = solution.find(kRecord, at)) != std::string::npos; at += kRecord.size()) {
      const std::string record = solution.substr(at, solution.find_first_of(",.-[", at) - at);  // with the event's name
      const bool records = todo.code.find(record) != std::string::npos;
      if (!records && todo.code.find("todo(") == std::string::npos) found.insert(id);
    }
  }
  return found.size() == 1 ? *found.begin() : "";
}

// The order checker names two accesses, the later one second. It names each by its place or, if a probe made it, by the
// probe's TODO. The rest of the line is advice, which only says for certain that an event was recorded too early or not
// at all.
std::string of_order(const std::string& line, const Todos& todos) {
  constexpr std::string_view kEarly = " was recorded too early, at ";
  if (const std::size_t early = line.find(kEarly); early != std::string::npos) {
    for (const Place& place : places(line.substr(early))) {
      if (const std::string id = todos.at(place); !id.empty()) return id;
    }
  }
  constexpr std::string_view kProbe = "(the probe of ";
  if (line.find(" had not been recorded yet") != std::string::npos) {
    if (const std::string id = without_its_record(todos); !id.empty()) return id;
  }
  const std::size_t middle = std::min(line.find(") and "), line.size());
  const std::size_t end = std::min(line.find(" use the same memory"), line.size());
  const std::string later = line.substr(middle, end - middle), earlier = line.substr(0, middle);
  for (const std::string& access : {later, earlier}) {
    if (const std::size_t at = access.find(kProbe); at != std::string::npos) {
      const std::size_t first = access.find(' ', at + kProbe.size()) + 1;  // behind "TODO" or "WRITE"
      const std::string id = todos.region_of(access.substr(first, access.find(' ', first) - first));
      if (todos.contains(id)) return id;
    }
    for (const Place& place : places(access)) {
      if (const std::string id = todos.at(place); !id.empty()) return id;
    }
  }
  for (const std::string& access : {later, earlier}) {
    for (const Place& place : places(access)) {
      if (const std::string id = todos.nearest(place); !id.empty()) return id;
    }
  }
  return "";
}

// "the program is in cudaEventSynchronize(x) (02_ddp/ddp.h:12)": the TODO of that line, if its solution never lets the
// host wait. What another rank waits for is then not even enqueued.
std::string of_waiting_host(const std::vector<std::string>& rank_lines, const Todos& todos) {
  constexpr std::string_view kIn = "the program is in cuda";
  for (const std::string& line : rank_lines) {
    const std::size_t at = line.find(kIn);
    if (at == std::string::npos) continue;
    const std::string host = line.substr(at, line.find(';', at) - at);
    if (host.find("Synchronize(") == std::string::npos) continue;
    for (const Place& place : places(host)) {
      const std::string id = todos.at(place);
      if (!id.empty() && todos.all().at(id).code_in_solution.find("Synchronize(") == std::string::npos) return id;
    }
  }
  return "";
}

std::string one_of(const std::vector<std::string>& ids, const std::string& preferred) {
  if (ids.empty() || std::find(ids.begin(), ids.end(), preferred) != ids.end()) return ids.empty() ? "" : preferred;
  return ids[0];
}

// Returns 1 for "order: … (rank 1)", and -1 for a line without a rank.
int rank_at_the_end(const std::string& line) {
  int rank = -1;
  const std::size_t at = line.rfind(" (rank ");
  return at != std::string::npos && std::sscanf(line.c_str() + at, " (rank %d)", &rank) == 1 ? rank : -1;
}

// Advice on a collective that is out of bounds, by its count or its place.
std::string advice_on_count(const std::string& bounds, bool bf16) {
  if (bf16 && bounds.find("buff of nccl") != std::string::npos && bounds.find(" floats, ") != std::string::npos)
    return "  In this run, weights, activations and gradients have two bytes: does the call take them for floats?\n";
  const bool gather = bounds.find(" of ncclAllGather") != std::string::npos;
  if (bounds.find("buff of nccl") != std::string::npos && bounds.find(" beyond the end of ") != std::string::npos &&
      !gather && bounds.find(" of ncclReduceScatter") == std::string::npos)
    return "  The count of an NCCL call is in elements of its type: is it too large, or does the buffer begin too "
           "late?\n";
  if (bounds.find(" is memory of ") != std::string::npos) return "";  // the count is right
  if (!gather && bounds.find(" of ncclReduceScatter") == std::string::npos) return "";
  if (bounds.find(gather ? "recvbuff" : "sendbuff") == std::string::npos)
    return "  The count must be that of one rank's part, in elements: is it the total here, or a number of bytes?\n";
  return std::string(gather ? "  An all-gather writes" : "  A reduce-scatter reads") +
         " the parts of all ranks one after another: is the count that of one part, and does " +
         (gather ? "recvbuff point to where rank 0's part belongs?\n"
                 : "sendbuff point to the start of rank 0's part?\n");
}

// Advice on a call whose peer or root does not exist or is the rank itself, or whose buffer is null.
std::string advice_on_call(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (line.find("Assertion '__n < this->size()' failed") != std::string::npos)
      return "  An index is outside of a std::vector or the like: it is negative, or not below the size.\n";
    if (line.find("buff is NULL)") != std::string::npos)
      return "  The buffer of this call has no memory on this rank: is it the wrong buffer, or should this rank not "
             "make the call?\n";
    if (line.find("a group sends to this rank itself what it does not receive") != std::string::npos)
      return "  Does every rank send, or receive, where only one should? A message to oneself needs both in the "
             "group.\n";
    if (line.find("to or from this rank itself outside a group") != std::string::npos)
      return "  The peer of this call is the rank itself: is the peer wrong? A message to oneself needs a group.\n";
    int rank = -1, peer = 0, last = 0;
    const std::size_t at = line.find("root or peer is ");
    if (at == std::string::npos) continue;
    std::sscanf(line.c_str() + at, "root or peer is %d; expected 0 to %d", &peer, &last);
    std::string of_rank = "this rank";
    for (const std::string& other : lines) {
      if (std::sscanf(other.c_str(), "rank %d: ", &rank) == 1) {
        of_rank = "rank " + std::to_string(rank);
        break;
      }
    }
    return "  There is no rank " + std::to_string(peer) + ": the ranks of this communicator are 0 to " +
           std::to_string(last) +
           ". Should it be a neighbor on the other side or, in a ring, the rank at the other end? Is it a rank of "
           "another communicator? Or should " +
           of_rank + " not make this call?\n";
  }
  return "";
}

}  // namespace

Ending::Ending(int status, const std::string& output, bool bf16)
    : status_(status), bf16_(bf16), sighting_(failure(status, output)) {
  std::istringstream all(output);
  for (std::string line; std::getline(all, line);) {
    if (of_open_mpi(line)) continue;
    if (line.empty() && (lines_.empty() || lines_.back().empty())) continue;
    int rank = -1, length = 0;
    char signal[16] = "";
    if (std::sscanf(line.c_str(), "launch: rank %d was ended by signal %15s", &rank, signal) == 2 && rank_ < 0) {
      rank_ = rank;
      signal_ = signal;
    }
    std::sscanf(line.c_str(), "rank %d: %n", &rank, &length);
    if (length > 0 && rank_ < 0 && !waits()) rank_ = rank;
    for (const auto& [word, first] : {std::pair("order: ", &order_), {"bounds: ", &bounds_}, {"memory: ", &memory_}}) {
      if (!line.starts_with(word) || !first->empty()) continue;
      *first = line;
      if (rank_ < 0) rank_ = rank_at_the_end(line);
    }
    if (line.starts_with("verdict: ")) verdict_.push_back(line);
    if (line.starts_with("rank ") && line.find(" waits in ") != std::string::npos) rank_lines_.push_back(line);
    lines_.push_back(line);
  }
}

bool Ending::uses_memory_twice() const {
  return order_.find(" in one group") != std::string::npos || order_.find(" in one call") != std::string::npos;
}

bool Ending::waits() const { return status_ == kStuck || status_ == kTimedOut; }

std::string Ending::todo(const Todos& todos, const std::string& next) const {
  if (of_launches(order_)) return one_of(todos_at({order_}, todos), next);
  if (has_verdict()) {
    const std::string id = of_order(order_, todos);
    return uses_memory_twice() ? id : orderer(id, todos, next);
  }
  if (!verdict_.empty()) {
    if (const std::string host = of_waiting_host(rank_lines_, todos); !host.empty()) return host;
    const std::string id = one_of(todos_at(verdict_, todos), next);
    return id.empty() ? one_of(todos_at(rank_lines_, todos), next) : id;
  }
  const std::string id = named(lines_, todos);
  return id.empty() ? one_of(todos_at(lines_, todos), next) : id;
}

std::string Ending::on_default_stream(const Todos& todos) const {
  const std::string accesses = order_.substr(0, order_.find(" use the same memory"));
  const std::size_t middle = std::min(accesses.find(") and "), accesses.size());
  for (const std::string& access : {accesses.substr(0, middle), accesses.substr(middle)}) {
    if (access.find(" on the default stream") == std::string::npos) continue;
    const std::vector<std::string> found = todos_at({access}, todos);
    if (!found.empty()) return found[0];
  }
  return "";
}

std::vector<std::string> Ending::todos(const Todos& todos) const {
  std::vector<std::string> lines = has_verdict() ? std::vector{order_} : lines_;
  return todos_at(lines, todos);
}

std::string Ending::headline(int world, bool after_todo) const {
  const std::string where = after_todo ? "is where your program " : "";
  const std::string on = " on " + std::to_string(world) + (world == 1 ? " rank" : " ranks");
  const std::string of_rank = rank_ >= 0 ? " of rank " + std::to_string(rank_) : "";
  if (of_launches(order_)) return where + "launches NCCL calls in different orders on different ranks.";
  if (has_verdict()) {
    if (!uses_memory_twice()) return where + "does not wait for work that it needs.";
    return where + "uses the same memory twice in one " +
           (order_.find(" in one group") != std::string::npos ? "group." : "call.");
  }
  if (!bounds_.empty()) return where + "goes beyond its memory" + on + ".";
  if (!memory_.empty()) return where + "copies between the wrong kinds of memory" + on + ".";
  if (!verdict_.empty() || status_ == kStuck) return where + "did not finish" + on + ".";
  if (status_ == kTimedOut)
    return where + "did not finish" + on +
           ", and no rank waits for another: does a loop never end, or is the machine overloaded?";
  if (!signal_.empty()) {
    return where + "crashed" + on + ": signal " + signal_ + of_rank +
           (signal_ == "SEGV" || signal_ == "BUS" ? ", an invalid memory access." : ".");
  }
  if (status_ == 0) return where + "ended too early" + on + ", with status 0: does it call exit()?";
  return where + "ended with status " + std::to_string(status_) + on + ".";
}

std::string Ending::quote() const {
  if (has_verdict()) return listed({order_}, 1);
  if (!bounds_.empty()) return listed({bounds_}, 1) + advice_on_count(bounds_, bf16_);
  if (!memory_.empty()) return listed({memory_}, 1);
  if (!verdict_.empty()) {
    const bool all_receive = verdict_[0].find("all receive first") != std::string::npos;
    return "  The watchdog says:\n" + listed(verdict_, 1) + listed(rank_lines_, 8) +
           (all_receive
                ? "  Does each receive have its send? In one group (ncclGroupStart, ncclGroupEnd), a receive does not "
                  "hold\n    up a send.\n"
                : "  Does every rank make the same calls in the same order? Does each send have its receive?\n");
  }
  if (lines_.empty()) return "";
  return "  The last lines of its output:\n" + listed(lines_, kQuotedLines) + advice_on_call(lines_);
}

}  // namespace workshop::tools
