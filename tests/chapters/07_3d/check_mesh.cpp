// What every rank of a run of train_3d has sent to each of its groups, and what it has held, against the README's
// formulas: check_mesh RECORD. The run must have had full batches and one bucket of gradients a part.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Json = nlohmann::json;

struct Traffic {
  long ranks, calls = 0, bytes = 0;
  bool operator==(const Traffic&) const = default;
};
using Ledger = std::map<std::array<std::string, 2>, Traffic>;  // by communicator and operation
using Bytes = std::map<std::string, long>;                     // by kind of memory

struct Run {
  std::vector<int> widths;
  long D = 1, P = 1, T = 1, M = 1, B = 1, V = 1, steps = 0, epochs = 0;
  bool zero = false, adamw = false, activated = false, gpipe = false;
};

Run read_options(const Json& o) {
  Run run;
  run.widths = o.at("layers").get<std::vector<int>>();
  run.D = o.at("dp");
  run.P = o.at("pp");
  run.T = o.at("tp");
  run.M = o.at("micro-batches");
  run.V = o.at("chunks");
  run.B = o.at("batch-size");
  run.zero = o.at("zero") == 1 && run.D > 1;
  run.adamw = o.at("optimizer") == "adamw";
  run.activated = o.at("activation") != "none";
  run.gpipe = o.at("schedule") == "gpipe";
  return run;
}

// The layers of part `part`: all parts get the same number of pairs, or of layers without tensor parallelism, and the
// first ones one more each of those that are left.
std::pair<long, long> layers_of(const Run& run, long part) {
  const long together = run.T > 1 ? 2 : 1, parts = run.P * run.V;
  const long units = (static_cast<long>(run.widths.size()) - 1) / together;
  const auto begin = [&](long p) { return p * (units / parts) + std::min(p, units % parts); };
  return {together * begin(part), together * begin(part + 1)};
}

// What one part of the model adds to the ledger and the memory of a rank.
void add_part(const Run& run, long stage, long part, Ledger& ledger, Bytes& memory) {
  const auto [first, last] = layers_of(run, part);
  const bool bottom = part == 0, top = part == run.P * run.V - 1;
  const long rows = run.steps * run.B, messages = run.steps * run.M, r = run.B / run.M;
  long N = 0, outputs = 0, widest = 0;
  for (long i = first; i < last; ++i) {
    const bool column = run.T > 1 && i % 2 == 0, row = run.T > 1 && i % 2 == 1;
    const long in = run.widths[i] / (row ? run.T : 1), out = run.widths[i + 1] / (column ? run.T : 1);
    const bool last_layer = i + 2 == static_cast<long>(run.widths.size());
    N += in * out + out;
    outputs += out * (run.activated && !last_layer ? 2 : 1);
    widest = std::max({widest, out, run.T > 1 ? in : 0});
    if (run.T > 1) {  // g after the row-parallel layer, f before the column-parallel one
      Traffic& t = ledger.try_emplace({"tensor", "ncclAllReduce"}, Traffic{run.T}).first->second;
      t.calls += messages;
      t.bytes += 4 * rows * (column ? in : out);
    }
  }
  const long shard = run.zero ? (N + run.D - 1) / run.D : N;
  const auto average = [&](const char* op) {
    Traffic& t = ledger.try_emplace({"data", op}, Traffic{run.D}).first->second;
    t.calls += run.steps;
    t.bytes += 4 * run.steps * shard;
  };
  if (run.zero) {
    average("ncclReduceScatter");
    average("ncclAllGather");
  } else if (run.D > 1) {
    average("ncclAllReduce");
  }
  const auto message = [&](const char* communicator, const char* op, long width) {
    Traffic& t = ledger.try_emplace({communicator, op}, Traffic{run.P}).first->second;
    t.calls += messages;
    t.bytes += 4 * rows * width;
  };
  const long in = run.widths[first], out = run.widths[last];
  if (!bottom) {
    message("pipeline", "ncclRecv", in);
    message("gradients", "ncclSend", in);
  }
  if (!top) {
    message("pipeline", "ncclSend", out);
    message("gradients", "ncclRecv", out);
  }

  const long held = run.zero ? shard * run.D : N;
  memory["parameters"] += 4 * held;
  memory["gradients"] += 4 * held;
  memory["optimizer"] += run.adamw ? 8 * shard : 0;
  const long in_flight = run.gpipe ? run.M : std::min(run.M, run.P - stage);
  const long inputs = bottom ? 0 : run.gpipe ? run.M : std::min(run.M, run.P - stage + 1);
  const long gradients = top ? 0 : run.gpipe ? std::min(2L, run.M) : 1;
  memory["activations"] += 4 * r * (in_flight * outputs + inputs * in + 2 * widest);
  memory["buckets"] += 4 * r * (gradients * out + (bottom ? 0 : 2 * in));
}

void add_losses(const Run& run, long stage, Ledger& ledger) {
  const auto add = [&](const char* communicator, const char* op, long ranks) {
    Traffic& t = ledger.try_emplace({communicator, op}, Traffic{ranks}).first->second;
    t.calls += run.epochs;
    t.bytes += 4 * run.steps;
  };
  if (run.P > 1 && stage == run.P - 1) add("pipeline", "ncclSend", run.P);
  if (run.P > 1 && stage == 0) add("pipeline", "ncclRecv", run.P);
  if (run.D > 1 && stage == 0) add("data", "ncclAllReduce", run.D);
}

int compare(int rank, const Ledger& found, const Ledger& expected) {
  Ledger both = found;
  both.insert(expected.begin(), expected.end());
  int differences = 0;
  for (const auto& [key, traffic] : both) {
    const Traffic f = found.contains(key) ? found.at(key) : Traffic{},
                  e = expected.contains(key) ? expected.at(key) : Traffic{};
    if (f == e) continue;
    std::printf("rank %d, %s on '%s': %ld calls and %ld bytes among %ld ranks, expected %ld, %ld and %ld\n", rank,
                key[1].c_str(), key[0].c_str(), f.calls, f.bytes, f.ranks, e.calls, e.bytes, e.ranks);
    ++differences;
  }
  return differences;
}

int check(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  Run run;
  std::map<int, Ledger> ledgers;
  std::map<int, Json> peaks;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (line["type"] == "run") run = read_options(line["options"]);
    if (line["type"] == "step") run.epochs = std::max(run.epochs, line["epoch"].get<long>() + 1);
    if (line["type"] == "end") run.steps = line["steps"];
    if (line["type"] == "memory") peaks[line["rank"]] = line["peak"];
    if (line["type"] != "collective") continue;
    ledgers[line["rank"]][{line["communicator"], line["op"]}] = {line["ranks"], line["calls"], line["bytes"]};
  }
  if (static_cast<long>(peaks.size()) != run.D * run.P * run.T || run.steps == 0)
    throw std::runtime_error("ranks are missing");
  int differences = 0;
  for (const auto& [rank, peak] : peaks) {
    const long stage = rank / (run.D * run.T);
    Ledger ledger;
    Bytes memory;
    for (long chunk = 0; chunk < run.V; ++chunk) add_part(run, stage, chunk * run.P + stage, ledger, memory);
    add_losses(run, stage, ledger);
    differences += compare(rank, ledgers[rank], ledger);
    for (const auto& [kind, bytes] : memory) {
      const bool pooled = kind == "activations" || kind == "buckets";  // which depends on the order of the chunks
      if (peak.at(kind) == bytes || (pooled && run.V > 1)) continue;
      std::printf("rank %d: %ld bytes of %s, expected %ld\n", rank, peak.at(kind).get<long>(), kind.c_str(), bytes);
      ++differences;
    }
  }
  return differences == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: check_mesh RECORD");
    return check(argv[1]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
