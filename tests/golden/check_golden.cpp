// Compares a run record with a golden run of PyTorch.
//
//   check_golden GOLDEN.json RECORD.jsonl [--tolerance 1e-5]
//
// The record must hold exactly the golden run's steps of every replica, with their losses and mean losses, and exactly
// its parameters. The error of a loss is relative to the expected loss. The error of a parameter is relative to the
// expected value or to the root mean square of its tensor, whichever is larger: a weight that happens to lie near zero
// is no more precise than its neighbours. Prints one line: the largest error, or the first value that differs.
// Exit status: 0 equal, 1 different, 2 a bad command line or a file that cannot be read or is incomplete.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/run_record.h"

namespace {

using namespace workshop::tools;
using Numbers = std::vector<double>;

// The run differs from the golden run; anything else thrown is a file that cannot be used.
struct Mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Golden {
  std::vector<Numbers> losses;                              // by replica and step
  std::vector<std::pair<std::string, Numbers>> parameters;  // name and values after the last step
};

Golden read_golden(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const nlohmann::json json = nlohmann::json::parse(file);
  Golden golden;
  for (const auto& rank : json.at("ranks")) golden.losses.push_back(rank.at("losses"));
  for (const auto& [name, values] : json.at("ranks").at(0).at("params").items()) {
    golden.parameters.emplace_back(name, values.get<Numbers>());
  }
  return golden;
}

// Keeps the largest relative error seen and ends the comparison at the first one above the tolerance.
class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  // The error is relative to |expected| or `scale`, whichever is larger.
  void check(const std::string& what, double expected, double got, double scale = 0) {
    const double error = relative_error(got, expected, scale);
    if (!(error <= tolerance_)) {
      char numbers[128];
      std::snprintf(numbers, sizeof numbers, ": expected %.9g, got %.9g (relative error %.2g, tolerance %.2g)",
                    expected, got, error, tolerance_);
      throw Mismatch(what + numbers);
    }
    ++count_;
    if (error >= largest_) {
      largest_ = error;
      where_ = what;
    }
  }

  void print() const {
    std::printf("%d numbers agree with PyTorch; largest relative error %.2g (%s)\n", count_, largest_, where_.c_str());
  }

 private:
  double tolerance_;
  double largest_ = 0;
  int count_ = 0;
  std::string where_;
};

void require_count(const std::string& what, std::size_t expected, std::size_t got) {
  const std::string message = what + ": expected " + std::to_string(expected) + ", got " + std::to_string(got);
  if (got < expected) throw std::runtime_error("the record is incomplete, " + message);
  if (got > expected) throw Mismatch(message);
}

void compare_losses(const Golden& golden, const RunRecord& record, Comparison& comparison) {
  const std::size_t replicas = golden.losses.size();
  require_count("number of steps of all replicas", replicas * golden.losses[0].size(), record.losses.size());
  for (std::size_t i = 0; i < record.losses.size(); ++i) {
    const StepLoss& got = record.losses[i];  // in order of step, then replica
    const int step = static_cast<int>(i / replicas), replica = static_cast<int>(i % replicas);
    const std::string where = "step " + std::to_string(step) + ", replica " + std::to_string(replica);
    if (got.step != step || got.replica != replica) {
      throw Mismatch(where + ": the record has step " + std::to_string(got.step) + ", replica " +
                     std::to_string(got.replica) + " in its place");
    }
    double sum = 0;
    for (const Numbers& losses : golden.losses) sum += losses.at(step);
    comparison.check(where + ", loss", golden.losses[replica][step], got.loss);
    comparison.check(where + ", global loss", sum / static_cast<double>(replicas), got.global_loss);
  }
}

void compare_parameters(const Golden& golden, const RunRecord& record, Comparison& comparison) {
  require_count("number of parameters", golden.parameters.size(), record.parameters.size());
  for (const auto& [name, expected] : golden.parameters) {
    const auto got = std::ranges::find(record.parameters, name, &Tensor::name);
    if (got == record.parameters.end()) throw Mismatch("parameter " + name + " is not in the record");
    require_count("number of values of parameter " + name, expected.size(), got->values.size());
    const double squares = std::inner_product(expected.begin(), expected.end(), expected.begin(), 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string where = "parameter " + name + "[" + std::to_string(i) + "] after the last step";
      comparison.check(where, expected[i], got->values[i], rms);
    }
  }
}

void compare(const Golden& golden, const RunRecord& record, double tolerance) {
  if (!record.todo.empty()) throw std::runtime_error("the run ended at TODO " + record.todo);
  Comparison comparison(tolerance);
  compare_losses(golden, record, comparison);
  compare_parameters(golden, record, comparison);
  comparison.print();
}

}  // namespace

int main(int argc, char** argv) {
  std::string golden, record;
  double tolerance = 1e-5;
  CLI::App app("Compares a run record with a golden run of PyTorch.");
  app.add_option("golden", golden, "golden file (JSON)")->required();
  app.add_option("record", record, "run record (JSON Lines)")->required();
  app.add_option("--tolerance", tolerance, "largest relative error accepted")->check(CLI::NonNegativeNumber);
  try {
    app.parse(argc, argv);
    compare(read_golden(golden), read_run_record(record), tolerance);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Mismatch& error) {
    std::fprintf(stderr, "%s differs from PyTorch: %s\n", record.c_str(), error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "check_golden: %s\n", error.what());
    return 2;
  }
}
