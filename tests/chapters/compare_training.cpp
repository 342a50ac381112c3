// Compares what two runs have learned: compare_training EXPECTED RECORD [BOUND [resumed]]
// The global loss of every step and all final parameters must differ by at most BOUND, or BOUND of their size where that
// is above 1; without a BOUND they must be equal to the last bit. In both runs all replicas must be equal to the last bit. The RECORD of a resumed run
// has the last steps alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using Json = nlohmann::json;

// What is compared: "loss of step 3" or "0.weight[5]", and its value.
using Learned = std::map<std::string, double>;

double number(const Json& value) { return value.is_number() ? value.get<double>() : std::nan(""); }

Learned read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  Learned learned;
  std::map<std::string, std::string> hashes;
  bool complete = false;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (line["type"] == "step") {
      // Every replica writes the same mean.
      const std::string what = "loss of step " + std::to_string(line["step"].get<int>());
      const double loss = number(line["global_loss"]);
      const auto [place, added] = learned.emplace(what, loss);
      if (!added && !(place->second == loss)) throw std::runtime_error(path + ": the replicas' mean losses differ");
    } else if (line["type"] == "parameter") {
      for (std::size_t i = 0; i < line["values"].size(); ++i) {
        learned[line["name"].get<std::string>() + "[" + std::to_string(i) + "]"] = number(line["values"][i]);
      }
    } else if (line["type"] == "value" && line["name"].get<std::string>().starts_with("validation loss")) {
      learned[line["name"]] = number(line["value"]);
    } else if (line["type"] == "replica") {
      const auto [place, added] = hashes.emplace(line["name"], line["hash"]);
      if (!added && place->second != line["hash"].get<std::string>()) {
        throw std::runtime_error(path + ": the replicas' " + place->first + " differ");
      }
    } else if (line["type"] == "end") {
      complete = line["status"] == "complete";
    }
  }
  if (!complete || hashes.empty()) throw std::runtime_error(path + " is not a complete record of a training run");
  return learned;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool resumed = argc == 5 && std::string(argv[4]) == "resumed";
    if (argc < 3 || argc > 5 || (argc == 5 && !resumed)) {
      throw std::runtime_error("usage: compare_training EXPECTED RECORD [BOUND [resumed]]");
    }
    Learned expected = read(argv[1]);
    const Learned found = read(argv[2]);
    const double bound = argc >= 4 ? std::stod(argv[3]) : 0;
    if (resumed) {
      const auto is_loss = [](const auto& learned) { return learned.first.find("loss of") != std::string::npos; };
      std::erase_if(expected, [&](const auto& learned) { return is_loss(learned) && !found.contains(learned.first); });
    }
    if (expected.size() != found.size()) throw std::runtime_error("the runs have different steps or parameters");
    double largest = 0;
    for (const auto& [what, value] : expected) {
      if (!found.contains(what)) throw std::runtime_error(what + " is missing");
      const double error = std::fabs(found.at(what) - value) / std::max(1.0, std::fabs(value));
      if (!(error <= bound)) {
        std::printf("%s: %.9g, expected %.9g; the difference %.2g is above the bound %.2g\n", what.c_str(),
                    found.at(what), value, error, bound);
        return 1;
      }
      largest = std::max(largest, error);
    }
    std::printf("%zu losses and parameters agree: largest difference %.2g, bound %.2g\n", expected.size(), largest,
                bound);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
