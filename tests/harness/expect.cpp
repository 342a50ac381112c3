// SPDX-License-Identifier: Apache-2.0
#include "tests/harness/expect.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "tools/shared/json.h"

namespace workshop::tests {
namespace {

using tools::RunRecord;
using tools::Tensor;
using Json = nlohmann::json;

// Returns the values that a run has learned, keyed by name: "loss of step 3", "0.weight[5]", "validation loss of epoch
// 0".
std::map<std::string, double> learned(const RunRecord& record) {
  if (!record.todo.empty() || record.replicas.empty()) fail("this is not a complete record of a training run");
  std::map<std::string, double> all;
  for (const auto& loss : record.losses) {
    const auto [place, added] = all.emplace(text("loss of step ", loss.step), loss.global_loss);
    if (!added && !(place->second == loss.global_loss)) fail("the replicas' mean losses differ");
  }
  for (const Tensor& parameter : record.parameters) {
    for (std::size_t i = 0; i < parameter.values.size(); ++i)
      all[text(parameter.name, "[", i, "]")] = parameter.values[i];
  }
  for (const auto& [key, value] : record.values) {
    if (key.second.starts_with("validation loss")) all[key.second] = value;
  }
  for (const auto& [name, hashes] : record.replicas) {
    if (hashes.size() > 1) fail("the replicas' " + name + " differ");
  }
  return all;
}

std::string printed(double number) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", number);
  return buffer;
}

// Appends a line to `differences` if the two numbers differ.
void compare(std::string& differences, const std::string& what, double found, double expected) {
  if (found == expected) return;
  differences += what + ": " + printed(found) + ", expected " + printed(expected) + "\n";
}

std::string without_notes(const std::string& output) {
  std::istringstream in(output);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    if (!std::regex_search(line, std::regex("^note: [0-9]+ (ranks|parts) share |^warning: .* stays? idle")))
      kept += line + "\n";
  }
  return kept;
}

// Returns whether any line of `output` matches.
bool matches(const std::string& output, const std::string& regex) {
  const std::regex compiled(regex);
  std::istringstream in(output);
  for (std::string line; std::getline(in, line);) {
    if (std::regex_search(line, compiled)) return true;
  }
  return false;
}

}  // namespace

// ---- two trainings -------------------------------------------------------------------------------------------------

std::string compare_training(const RunRecord& expected_run, const RunRecord& found_run, double bound, bool resumed) {
  auto expected = learned(expected_run);
  const auto found = learned(found_run);
  if (resumed) {
    std::erase_if(expected, [&](const auto& value) {
      return value.first.find("loss of") != std::string::npos && !found.contains(value.first);
    });
  }
  if (expected.size() != found.size()) return "the runs have different steps or parameters";
  for (const auto& [what, value] : expected) {
    if (!found.contains(what)) return what + " is missing";
    const double error = std::fabs(found.at(what) - value) / std::max(1.0, std::fabs(value));
    if (!(error <= bound)) {
      return text(what, ": ", printed(found.at(what)), ", expected ", printed(value), "; the difference ", error,
                  " is above the bound ", bound);
    }
  }
  return "";
}

// The least bound of a comparison. On a GPU, the library may round differently in a product of a different size. One
// rounding of a bfloat16 is up to 1/256 of the value, and each of the two runs has one.
double least_bound(const Run& run) {
  const auto precision = run.record.settings.find("precision");
  const bool bfloat16s = precision != run.record.settings.end() && precision->second == "bf16";
  return kCuda && bfloat16s ? 1.0 / 128 : kSameBits;
}

void expect_same_training(const Run& expected, const Run& found, double bound, bool resumed) {
  const double least = std::max(bound, least_bound(expected));
  const std::string difference = compare_training(expected.record, found.record, least, resumed);
  if (!difference.empty()) fail(report(found, "what this learns: " + expected.command, difference));
}

void same_training(const std::string& name, double bound, const Command& expected, const Command& found,
                   Properties properties, const Where& where) {
  properties.ranks = std::max(expected.ranks, found.ranks);
  test(
      name, properties, [=] { expect_same_training(record(expected), record(found), bound); }, where);
}

void same_gpt(const std::string& name, double bound, const Command& expected, const Command& found,
              const Where& where) {
  test(
      name, {.ranks = found.ranks},
      [=] {
        const Run one = record(expected, "expected.jsonl"), run = record(found, "found.jsonl");
        expect_same_training(one, run, bound);
        const auto close = [&](const std::string& what, double want, double is) {
          const double error = tools::relative_error(is, want, 1);
          if (!(error <= bound)) fail(report(run, text(what, " ", want), text(is, ", an error of ", error)));
        };
        std::map<int, double> norms;
        for (const auto& loss : one.record.losses) norms[loss.step] = loss.gradient_norm;
        for (const auto& loss : run.record.losses) {  // of all replicas
          close(text("norm of the gradient of step ", loss.step), norms.at(loss.step), loss.gradient_norm);
        }
        close("test loss", one.record.values.at({0, "test loss"}), run.record.values.at({0, "test loss"}));
      },
      where);
}

Golden golden(const std::string& path) {
  const Path file = source(path);
  const Json json = tools::read_json(file.path), &options = json.at("options");
  Golden golden{file, options.value("program", ""), "", options.value("world", 1),
                json.at("ranks")[0].contains("grads")};
  for (const std::string word : options.at("command")) {
    golden.options += (word.starts_with("tests/golden/") ? source(word).path : word) + " ";
  }
  return golden;
}

void golden_test(const std::string& name, const Golden& golden, const Command& command, const Where& where) {
  const Command probed = golden.gradients ? command.in("WORKSHOP_PROBES=1") : command;
  test(
      name, {.ranks = command.ranks}, [=] { expect_golden(record(probed), golden.file); }, where);
}

// The error of a loss is relative to the expected loss. The error of a parameter is relative to its expected value or
// to the root mean square of its tensor, whichever is larger: a weight that happens to lie near zero is no more precise
// than its neighbors.
void expect_golden(const Run& run, const Path& path) {
  const Json golden = tools::read_json(path.path);
  const Json& ranks = golden.at("ranks");
  // A bfloat16 has an eight-bit significand, so two values that are rounded differently differ by a relative 2⁻⁸ or
  // more. A loss is the mean of many values; about as many are rounded up as down.
  const bool bf16 = golden.at("options").value("precision", "fp32") == "bf16";
  const double loss_tolerance = bf16 ? 1.0 / 1024 : 1e-5, tolerance = bf16 ? 1.0 / 64 : 1e-5;
  const auto expect_close = [&](const std::string& what, double expected, double found, double scale = 0) {
    const double error = tools::relative_error(found, expected, scale);
    const bool is_loss = what.find("loss") != std::string::npos;
    if (!(error <= (is_loss ? loss_tolerance : tolerance)))
      fail(report(run, what + " " + printed(expected) + ", as in " + path.path,
                  text(printed(found), ", a relative error of ", error)));
  };
  const auto expect_count = [&](const std::string& what, std::size_t expected, std::size_t found) {
    if (found != expected) fail(report(run, text(expected, " ", what, ", as in ", path.path), text(found)));
  };

  const std::size_t replicas = ranks.size();
  expect_count("steps of all replicas", replicas * ranks[0].at("losses").size(), run.record.losses.size());
  for (std::size_t i = 0; i < run.record.losses.size(); ++i) {
    const auto& loss = run.record.losses[i];  // in order of step, then replica
    const int step = static_cast<int>(i / replicas), replica = static_cast<int>(i % replicas);
    const std::string where = text("step ", step, ", replica ", replica);
    if (loss.step != step || loss.replica != replica)
      fail(report(run, where, text("step ", loss.step, ", replica ", loss.replica)));
    double sum = 0;
    for (const Json& rank : ranks) sum += rank.at("losses").at(step).get<double>();
    expect_close(where + ", loss", ranks[replica].at("losses")[step], loss.loss);
    expect_close(where + ", global loss", sum / static_cast<double>(replicas), loss.global_loss);
    if (ranks[0].contains("norms"))
      expect_close(where + ", norm of the gradient", ranks[replica].at("norms")[step], loss.gradient_norm);
    if (ranks[0].contains("aux") && run.record.program.starts_with("09"))
      expect_close(where + ", auxiliary loss", ranks[replica].at("aux")[step], loss.auxiliary);
  }
  const auto expect_value = [&](const std::string& name, const Json& expected) {
    const auto found = run.record.values.find({0, name});
    if (found == run.record.values.end()) fail(report(run, "a value '" + name + "'", "none"));
    expect_close(name, expected, found->second);
  };
  if (ranks[0].contains("valid")) {
    const Json& losses = ranks[0].at("valid");
    for (std::size_t i = 0; i < losses.size(); ++i) expect_value(text("validation loss of epoch ", i), losses[i]);
    expect_value("test loss", ranks[0].at("test"));
  }
  // Compares root mean square, mean and the first values.
  const auto expect_tensor = [&](const std::string& name, const Json& values, const Tensor& found) {
    const double size = found.size(), rms = values.at("l2").get<double>() / std::sqrt(size);
    expect_close("root mean square of " + name, rms, found.l2 / std::sqrt(size));
    expect_close("mean of " + name, values.at("sum").get<double>() / size, found.sum / size, rms);
    const Json& first = values.at("first");
    for (std::size_t i = 0; i < first.size(); ++i)
      expect_close(text(name, "[", i, "]"), first[i], found.values.at(i), rms);
  };
  if (ranks[0].contains("grads")) {
    for (const auto& [name, values] : ranks[0].at("grads").items()) {
      // Each backward pass of the first step adds its own gradient, so the last probe has the whole sum.
      const tools::Probe* last = nullptr;
      for (const tools::Probe& probe : run.record.probes) {
        if (probe.tensor.name == name + ".grad" && probe.step == 0) last = &probe;
      }
      if (last == nullptr) fail(report(run, "the gradient of " + name, "none"));
      expect_tensor("the gradient of " + name, values, last->tensor);
    }
  }
  const Json& parameters = ranks[0].at("params");
  expect_count("parameters", parameters.size(), run.record.parameters.size());
  for (const auto& [name, values] : parameters.items()) {
    const auto found = std::ranges::find(run.record.parameters, name, &Tensor::name);
    if (found == run.record.parameters.end()) fail(report(run, "a parameter " + name, "none"));
    if (values.is_object() && !name.ends_with("in_proj_bias")) {
      expect_tensor("parameter " + name + " after the last step", values, *found);
      continue;
    }
    if (values.is_object()) {  // of a language model
      const double size = found->size(), rms = values.at("l2").get<double>() / std::sqrt(size);
      // The biases of the keys (the middle third) add the same number to all scores of a row, which softmax ignores.
      // Their gradient is zero up to rounding, and AdamW scales this rounding up to steps of noticeable size.
      const Json& first = values.at("first");
      if (first.size() < found->size()) expect_close("root mean square of " + name, rms, found->l2 / std::sqrt(size));
      for (std::size_t i = 0; i < first.size(); ++i) {
        const double place = static_cast<double>(i) / size;
        if (place >= 1.0 / 3 && place < 2.0 / 3) continue;
        expect_close(text("parameter ", name, "[", i, "] after the last step"), first[i], found->values.at(i), rms);
      }
      continue;
    }
    const auto expected = values.get<std::vector<double>>();
    expect_count("values of parameter " + name, expected.size(), found->values.size());
    const double squares = std::inner_product(expected.begin(), expected.end(), expected.begin(), 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_close(text("parameter ", name, "[", i, "] after the last step"), expected[i], found->values[i], rms);
    }
  }
}

// ---- what is sent and held -----------------------------------------------------------------------------------------

void expect_ledger(const Run& run, const std::vector<Traffic>& expected, int of_rank) {
  struct Sum {
    double calls = 0, bytes = 0;
  };
  std::map<std::pair<int, std::string>, std::pair<Sum, Sum>> ledger;  // found and expected, by rank and operation
  for (const auto& line : run.record.collectives) {
    if (of_rank != kAll && line.rank != of_rank) continue;
    Sum& found = ledger[{line.rank, line.op}].first;
    found.calls += line.calls;
    found.bytes += line.bytes;
  }
  for (const Traffic& line : expected) {
    const int first = line.rank == kAll ? 0 : line.rank, last = line.rank == kAll ? run.record.world - 1 : line.rank;
    for (int rank = first; rank <= last; ++rank)
      ledger[{rank, line.op}].second = {1.0 * line.calls, line.calls > 0 ? 1.0 * line.bytes : 0};
  }
  std::string differences;
  for (const auto& [key, sums] : ledger) {
    const std::string what = text("rank ", key.first, ", ", key.second);
    compare(differences, what + ", calls", sums.first.calls, sums.second.calls);
    compare(differences, what + ", bytes", sums.first.bytes, sums.second.bytes);
  }
  if (!differences.empty()) ADD_FAILURE() << report(run, "the ledger of the README", differences);
}

void ledger(const std::string& name, const Command& command, const std::vector<Traffic>& expected, const Where& where) {
  test(
      name, command, [=](const Run& run) { expect_ledger(run, expected); }, where);
}

void expect_memory(const Run& run, int of_rank, const Bytes& expected) {
  std::string differences;
  for (const auto& [rank, peaks] : run.record.peaks) {
    if (of_rank != kAll && rank != of_rank) continue;
    for (const auto& [kind, bytes] : expected) {
      compare(differences, text("rank ", rank, ", bytes of ", kind), peaks.contains(kind) ? peaks.at(kind) : NAN,
              bytes);
    }
  }
  if (static_cast<int>(run.record.peaks.size()) != run.record.world) differences += "ranks are missing\n";
  if (!differences.empty()) ADD_FAILURE() << report(run, "the memory of the README", differences);
}

void expect_clean_steps(const Run& run, long waits) {
  if (kCuda) return;
  std::string differences;
  for (const auto& [rank, host] : run.record.host) {
    const std::string of_rank = text("rank ", rank, ", ");
    compare(differences, of_rank + "allocations in steps", host.at("allocations"), 0);
    compare(differences, of_rank + "waits of the host in steps", host.at("synchronizations"), waits);
    compare(differences, of_rank + "devices in use", host.at("devices"), 1);
    compare(differences, of_rank + "cuBLAS handles of a stream", host.at("handles"), 1);
  }
  for (const auto& [rank, device] : run.record.device) {
    compare(differences, text("rank ", rank, ", bytes in use on the device"), device.at("in_use"),
            device.at("accounted"));
  }
  const std::size_t world = run.record.world;
  if (run.record.host.size() != world || run.record.device.size() != world) differences += "ranks are missing\n";
  if (!differences.empty()) ADD_FAILURE() << report(run, "steps that neither allocate nor wait", differences);
}

void step(const std::string& name, const Command& command, const Bytes& memory, const Where& where, long waits) {
  test(
      name, command,
      [=](const Run& run) {
        expect_clean_steps(run, waits);
        expect_memory(run, kAll, memory);
      },
      where);
}

// ---- refusals ------------------------------------------------------------------------------------------------------

void expect_one_line(const Run& run, int status, const std::string& regex) {
  std::string output = without_notes(run.output);
  // The mpirun of Open MPI 5 may print a NUL byte on a line of its own next to its message about an abort.
  std::erase(output, '\0');
  while (output.starts_with("\n")) output.erase(0, 1);
  while (output.ends_with("\n\n")) output.pop_back();
  const bool one = std::ranges::count(output, '\n') == 1;
  EXPECT_TRUE(run.status == status && one && matches(output, regex))
      << report(run, text("status ", status, " and one line that matches: ", regex),
                text("status ", run.status, " and\n", output));
}

void expect_output(const Run& run, int status, const std::vector<std::string>& regexes) {
  EXPECT_EQ(run.status, status) << report(run, text("status ", status),
                                          text("status ", run.status, " and\n", run.output));
  for (const std::string& regex : regexes) {
    EXPECT_TRUE(matches(run.output, regex)) << report(run, "a line that matches: " + regex, "\n" + run.output);
  }
}

void refused(const std::string& name, const std::string& regex, const Command& command, Properties properties,
             const Where& where) {
  properties.ranks = command.ranks;
  test(
      name, properties, [=] { expect_one_line(run(command), 2, regex); }, where);
}

void refusals(const std::string& prefix, const Command& command, const std::string& table, const Where& where) {
  static const std::regex row(R"(\s*(\S+)\s*\|(.*?)\| ?(.+))"), hash("#");
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(' ') == std::string::npos) continue;
    std::smatch cells;
    if (!std::regex_match(line, cells, row)) fail("no test is " + line);
    const bool several = cells.str(1).find('#') != std::string::npos;
    for (int n : several ? std::vector{1, 4} : std::vector{command.ranks}) {
      const auto filled = [n](const std::string& text) { return std::regex_replace(text, hash, std::to_string(n)); };
      Command with_options = with(command, cells.str(2));
      with_options.ranks = n;
      refused(prefix + filled(cells[1]), filled(cells[3]), with_options, {}, where);
    }
  }
}

// ---- timelines -----------------------------------------------------------------------------------------------------

std::map<int, std::vector<Span>> read_timeline(const std::string& path) {
  const Json timeline = tools::read_json(path);
  std::map<int, std::vector<Span>> ranks;
  for (const Json& event : timeline.at("traceEvents")) {
    if (event.at("ph") != "X") continue;  // a name, not a span
    ranks[event.at("pid")].push_back(
        {event.at("name"), event.at("tid"), event.at("ts").get<double>() / 1e3, event.at("dur").get<double>() / 1e3});
  }
  return ranks;
}

double simulated_step(const Command& command, double operations, double bytes) {
  const Command recorded = with(command, "--max-steps 2 --log-every 0 --timeline timeline.json");
  succeed(recorded.in(text("WORKSHOP_SIMULATE=compute=", operations, ",link=0s+", bytes, "/s")));
  double longest = 0;
  for (const auto& [rank, spans] : read_timeline("timeline.json")) {
    double begin = 0, end = 0;
    for (const Span& span : spans) {
      if (span.name == "forward blocks.0" && end <= begin) begin = span.begin;
      if (span.name == "backward blocks.0") end = span.end();
      if (span.name == "forward blocks.0" && span.begin > end && end > 0) break;  // evaluation
    }
    longest = std::max(longest, end - begin);
  }
  return longest;
}

void overlaps(const std::string& name, const Command& command, const std::string& communication, const Where& where) {
  // Returns the milliseconds during which communication and computation overlap on a rank.
  const auto overlap = [communication](const std::vector<Span>& spans) {
    double shared = 0;
    for (const Span& a : spans) {
      for (const Span& b : spans) {
        const bool computes = b.name.find("ward") != std::string::npos || b.name.starts_with("weights");
        const bool both = a.name.find(communication) != std::string::npos && computes;
        if (both && a.stream != b.stream)
          shared += std::max(0.0, std::min(a.end(), b.end()) - std::max(a.begin, b.begin));
      }
    }
    return shared;
  };
  // On a busy machine a rank may now and then be late, so there are three attempts.
  const auto body = [=] {
    for (int left = 2; left >= 0; --left) {
      const Run run = succeed(with(command, "--timeline timeline.json"));
      const auto timeline = read_timeline("timeline.json");
      if (timeline.empty()) fail(report(run, "a timeline", "one without spans"));
      const auto none = std::ranges::find_if(timeline, [&](const auto& rank) { return !(overlap(rank.second) > 0); });
      if (none == timeline.end()) return;
      EXPECT_TRUE(left > 0) << report(run, communication + " behind computation", text("none on rank ", none->first));
    }
  };
  test(name, {.ranks = command.ranks}, body, where);
}

}  // namespace workshop::tests
