// SPDX-License-Identifier: Apache-2.0
#include "tools/shared/run_record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "tools/shared/json.h"

namespace workshop::tools {
namespace {

using Json = nlohmann::json;

// In a record, numbers that are not finite are strings. All become NaN, because none should equal anything.
double number(const Json& value) {
  return value.is_string() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// A line of a record. Its array "floats" or "values" (doubles) is parsed separately: nearly all of a record is these
// numbers, and from_chars() reads them several times as fast as a JSON parser.
struct Line {
  explicit Line(std::string text) {
    has_values = take_values<float>(text, "\"floats\":[") || take_values<double>(text, "\"values\":[");
    json = parse_json(text);
  }
  const Json& at(const char* name) const { return json.at(name); }

  Json json;
  bool has_values;
  std::vector<double> values;
  int unwritten = 0;

 private:
  // Moves the elements of the array that begins with `key` from the text to `values`. Cannot match inside a string,
  // where the quotes of `key` would be escaped.
  template <typename T>
  bool take_values(std::string& text, std::string_view key) {
    const std::size_t found = text.find(key);
    if (found == std::string::npos) return false;
    const std::size_t first = found + key.size();
    text.erase(first, read_values<T>(std::string_view(text).substr(first)));
    return true;
  }

  // Returns the number of characters before the closing bracket.
  template <typename T>
  std::size_t read_values(std::string_view text) {
    const char *at = text.data(), *const end = text.data() + text.size();
    while (at != end && *at != ']') {
      if (!values.empty() && *at++ != ',') throw std::runtime_error("there is no comma after a value");
      if (at != end && *at == '"') {
        const char* close = std::find(at + 1, end, '"');
        unwritten += std::string_view(at + 1, close) == "unwritten" ? 1 : 0;
        values.push_back(std::numeric_limits<double>::quiet_NaN());
        at = close == end ? end : close + 1;
      } else {
        T value;
        const auto [next, error] = std::from_chars(at, end, value);
        if (error != std::errc()) throw std::runtime_error("a value is not a number");
        values.push_back(value);
        at = next;
      }
    }
    return at - text.data();
  }
};

Tensor read_tensor(const Line& line) {
  Tensor tensor{line.at("name"), line.at("shape"), line.values, number(line.at("l2")), number(line.at("sum"))};
  tensor.integers = line.json.value("integers", false);
  tensor.unwritten = line.unwritten;
  if (!line.has_values) throw std::runtime_error("a tensor without values");
  if (static_cast<double>(tensor.values.size()) > tensor.size()) throw std::runtime_error("more values than the shape");
  return tensor;
}

// Sums the device memory of all kinds but the data set, which every rank holds with any strategy.
double model_bytes(const Json& by_kind) {
  double sum = 0;
  for (const auto& [kind, bytes] : by_kind.items()) sum += kind == "data" || kind == "host" ? 0 : bytes.get<double>();
  return sum;
}

std::string variant(const Json& options) {
  std::string text;
  if (options.contains("dp")) {
    for (const char* size : {"dp", "pp", "tp"}) text.append(size).append(" ").append(options[size].dump()).append(" ");
    text.pop_back();
  } else if (options.contains("stage")) {
    text = "stage " + options["stage"].dump();
  } else {
    text = options.value("schedule", "");
  }
  return text;
}

// The first line of a rank is about its own device.
void read_memory(const Json& line, RunRecord& record) {
  const int rank = line.at("rank");
  const std::map<std::string, double> peaks = line.at("peak");
  const auto device = line.value("device", std::map<std::string, double>());
  record.peak_memory[rank] = std::max(record.peak_memory[rank], model_bytes(line.at("peak")));
  if (!record.peaks.contains(rank)) {
    record.peaks[rank] = peaks;
    record.device[rank] = device;
  } else {
    const std::pair key(rank, device.contains("number") ? static_cast<int>(device.at("number")) : 0);
    record.other_peaks[key] = peaks;
    record.other_devices[key] = device;
  }
}

constexpr int kVersion = 1;  // docs/record.md; older records have no version and the same format

void read_line(const Line& read, RunRecord& record) {
  const Json& line = read.json;
  const std::string type = line.at("type");
  if (type == "run") {
    if (const Json version = line.value("version", Json(kVersion)); version != kVersion) {
      throw std::runtime_error("this is a record of version " + version.dump() + "; these tools read version " +
                               std::to_string(kVersion) + " (docs/record.md)");
    }
    record.line = line.dump();
    record.simulated = line.value("simulated", "");
    record.chapter = line.at("chapter");
    record.program = line.at("program");
    if (const auto options = line.find("options"); options != line.end()) {
      record.variant = variant(*options);
      for (const auto& [name, value] : options->items()) {
        if (value.is_number()) record.options[name] = value;
        record.settings[name] = value.is_string() ? value.get<std::string>() : value.dump();
      }
    }
    record.world = line.at("world");
  } else if (type == "step") {
    record.losses.push_back(
        {line.at("step"), line.at("replica"), number(line.at("loss")), number(line.at("global_loss")),
         line.contains("gradient_norm") ? number(line.at("gradient_norm")) : 0, line.value("epoch", 0),
         line.contains("auxiliary_loss") ? number(line.at("auxiliary_loss")) : 0});
  } else if (type == "probe") {
    record.probes.push_back({line.at("id"), line.at("rank"), line.at("step"), line.at("sequence"), read_tensor(read)});
  } else if (type == "passed") {
    record.passed[line.at("rank")].push_back(
        {line.at("id"), line.at("rank"), line.at("step"), line.at("sequence"), {line.at("name"), {}, {}}});
  } else if (type == "parameter") {
    record.parameters.push_back(read_tensor(read));
  } else if (type == "collective") {
    record.collectives.push_back({line.at("rank"), line.at("op"), line.at("communicator"), line.at("ranks"),
                                  line.at("calls"), line.at("elements"), line.at("bytes"),
                                  line.value("places", std::map<std::string, std::pair<double, double>>()),
                                  line.value("types", std::map<std::string, std::string>()),
                                  line.value("with", std::map<std::string, std::string>())});
  } else if (type == "stall") {
    record.stalls.push_back({line.at("rank"), line.at("on"), line.at("call"), line.at("place"), line.at("behind"),
                             line.at("seconds"), line.value("times", 0)});
  } else if (type == "memory") {
    read_memory(line, record);
  } else if (type == "host") {
    for (const char* what : {"allocations", "synchronizations", "events", "devices", "handles"}) {
      if (line.contains(what)) record.host[line.at("rank")][what] = line.at(what);
    }
  } else if (type == "value") {
    record.values[{line.at("rank"), line.at("name")}] = number(line.at("value"));
  } else if (type == "replica") {
    record.replicas[line.at("name")].insert(line.at("hash").get<std::string>());
  } else if (type == "end") {
    if (line.at("status") == "todo") {
      record.todo = line.at("todo");
    } else {
      record.complete = true;
      record.steps = line.at("steps");
      record.seconds_per_step = number(line.at("seconds_per_step"));
    }
  } else {
    throw std::runtime_error("unknown type '" + type + "'");
  }
}

}  // namespace

double Tensor::size() const {
  double size = 1;
  for (long extent : shape) size *= static_cast<double>(extent);
  return size;
}

double Tensor::rms() const { return size() > 0 ? l2 / std::sqrt(size()) : 0; }

// The count of a reduce-scatter is what a rank receives; that of all-gather and all-to-all, what it sends to each rank.
double bytes_sent(const Collective& c) {
  const double ranks = c.ranks;
  if (c.op == "ncclAllReduce") return c.bytes * 2 * (ranks - 1) / ranks;
  if (c.op == "ncclReduceScatter" || c.op == "ncclAllGather" || c.op == "ncclAlltoAll") return c.bytes * (ranks - 1);
  if (c.op == "ncclBroadcast" || c.op == "ncclBcast" || c.op == "ncclReduce") return c.bytes * (ranks - 1) / ranks;
  if (c.op == "ncclGather" || c.op == "ncclScatter") return c.bytes * (ranks - 1) / ranks;
  if (c.op == "ncclSend" || c.op == "cudaMemcpyPeerAsync") return c.bytes;
  if (c.op == "ncclRecv") return 0;  // counted where it is sent
  throw std::runtime_error("no formula for what " + c.op + " sends");
}

std::string group(const Collective& c, const std::string& chapter) {
  if (c.op == "ncclBroadcast") return "";
  if (c.communicator == "experts") return "experts";
  if (c.communicator == "context" || (chapter == "08_context_parallel" && c.op != "ncclAllReduce")) return "context";
  if (chapter != "10_less_communication" && (c.op == "ncclSend" || c.op == "ncclRecv")) return "pipeline";
  return c.communicator == "tensor" || chapter == "05_tensor_parallel" ? "tensor" : "data";
}

namespace {

void sort(RunRecord& record) {
  std::ranges::sort(record.probes, {}, [](const Probe& p) { return std::tuple(p.step, p.sequence, p.rank); });
  std::ranges::sort(record.losses, {}, [](const StepLoss& l) { return std::tuple(l.step, l.replica); });
}

std::ifstream open(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return file;
}

}  // namespace

RunRecord read_run_record(const std::string& path) {
  std::ifstream file = open(path);
  RunRecord record;
  std::string text, last_type;
  int number = 0;
  while (std::getline(file, text)) {
    ++number;
    try {
      const Line line(text);
      read_line(line, record);
      last_type = line.at("type");
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(number) + ": " + error.what());
    }
    if (number == 1 && last_type != "run") throw std::runtime_error(path + ":1: the first line is not the run's");
  }
  if (last_type != "end") throw std::runtime_error(path + ": the record stops before its end");
  sort(record);
  return record;
}

double option(const RunRecord& run, const std::string& name, double otherwise) {
  const auto found = run.options.find(name);
  return found == run.options.end() ? otherwise : found->second;
}

RunRecord read_run_line(const std::string& line) {
  RunRecord record;
  read_line(Line(line), record);
  return record;
}

RunRecord read_journals(const std::string& path) {
  std::ifstream file = open(path);
  RunRecord record;
  for (std::string text; std::getline(file, text);) {
    std::optional<Line> line;
    try {
      line.emplace(text);
    } catch (const std::exception&) {
      continue;  // cut off
    }
    read_line(*line, record);
  }
  sort(record);
  return record;
}

double relative_error(double a, double b, double scale) {
  const double error = std::abs(a - b);
  if (error == 0) return 0;
  const double relative = error / std::max(scale, std::abs(b));
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

}  // namespace workshop::tools
