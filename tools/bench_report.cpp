// Puts the parts of ./workshop bench together: bench_report [--json FILE] PART...
// A part is a JSON object that a measurement wrote (bench, bench_torch.py) or the run record of a training program
// (*.jsonl), whose time a step counts. Prints the times a step, beside PyTorch's where those were measured.
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using Json = nlohmann::ordered_json;

// The time a step of a training program in microseconds, under its name and number of ranks.
void add_record(const std::string& path, std::ifstream& file, Json& report) {
  std::string name;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (line["type"] == "run") name = line["program"].get<std::string>() + std::to_string(line["world"].get<int>());
    if (line["type"] != "end") continue;
    if (line["status"] != "complete") throw std::runtime_error(path + ": the run did not end well");
    report["step_us"][name] = line["seconds_per_step"].get<double>() * 1e6;
    return;
  }
  throw std::runtime_error(path + ": not a complete run record");
}

void add_part(const std::string& path, Json& report) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  if (path.ends_with(".jsonl")) return add_record(path, file, report);
  const Json part = Json::parse(file);
  if (part.contains("torch")) {
    report["torch"] = {{"version", part["torch"]},
                       {"mlp1", part["mlp_us_per_step"]},
                       {"ddp2", part["ddp2_us_per_step"]}};
  } else {
    report.update(part);
  }
}

void print_steps(const Json& report) {
  const bool with_torch = report.contains("torch");
  std::printf("%-28s %12s", "time a step", "ours");
  if (with_torch) std::printf(" %12s %8s", "PyTorch", "times");
  std::printf("\n");
  for (const auto& [name, time] : report["step_us"].items()) {
    const std::string ranks = name.substr(name.size() - 1);
    const std::string label = name.substr(0, name.size() - 1) + ", 6-4-2, ranks: " + ranks;
    std::printf("%-28s %9.2f us", label.c_str(), time.get<double>());
    if (with_torch && report["torch"].contains(name)) {
      const double torch = report["torch"][name];
      std::printf(" %9.1f us %8.1f", torch, torch / time.get<double>());
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Json report;
    std::string out;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--json" && i + 1 < argc) {
        out = argv[++i];
      } else {
        add_part(word, report);
      }
    }
    if (report.contains("step_us")) print_steps(report);
    if (!out.empty() && !(std::ofstream(out) << report.dump(2) << "\n")) throw std::runtime_error("cannot write " + out);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_report: %s\n", error.what());
    return 2;
  }
}
