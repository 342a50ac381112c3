// Compares the ledger of a run record with a formula: check_ledger RECORD [RANK OP CALLS BYTES]...
// Each four arguments are one line of the ledger; RANK "all" stands for every rank. Operations that are not named, and
// those with 0 calls, must not be in the ledger. Communicators are added up.
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/run_record.h"

namespace {

struct Traffic {
  double calls = 0, bytes = 0;
  bool operator==(const Traffic&) const = default;
};
using Ledger = std::map<std::pair<int, std::string>, Traffic>;  // by rank and operation

Ledger expected_ledger(const std::vector<std::string>& args, int world) {
  Ledger ledger;
  if (args.size() % 4 != 1) throw std::invalid_argument("usage: check_ledger RECORD [RANK|all OP CALLS BYTES]...");
  for (std::size_t i = 1; i < args.size(); i += 4) {
    const Traffic traffic{std::stod(args[i + 2]), std::stod(args[i + 3])};
    const int first = args[i] == "all" ? 0 : std::stoi(args[i]);
    const int last = args[i] == "all" ? world - 1 : first;
    for (int rank = first; rank <= last && traffic.calls > 0; ++rank) ledger[{rank, args[i + 1]}] = traffic;
  }
  return ledger;
}

// Prints every line that only one of the ledgers has, or both with different numbers.
int print_differences(const Ledger& found, const Ledger& expected) {
  Ledger both = found;
  both.insert(expected.begin(), expected.end());
  int differences = 0;
  for (const auto& [key, traffic] : both) {
    const Traffic f = found.contains(key) ? found.at(key) : Traffic{};
    const Traffic e = expected.contains(key) ? expected.at(key) : Traffic{};
    if (f == e) continue;
    ++differences;
    std::printf("rank %d, %s: %.0f calls and %.0f bytes, expected %.0f calls and %.0f bytes\n", key.first,
                key.second.c_str(), f.calls, f.bytes, e.calls, e.bytes);
  }
  return differences;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    const auto record = workshop::tools::read_run_record(args.empty() ? "" : args[0]);
    Ledger found;
    for (const auto& line : record.collectives) {
      Traffic& traffic = found[{line.rank, line.op}];
      traffic.calls += line.calls;
      traffic.bytes += line.bytes;
    }
    return print_differences(found, expected_ledger(args, record.world)) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
