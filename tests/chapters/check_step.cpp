// What a training step costs beside its arithmetic: check_step RECORD [RANK:]KIND=BYTES...
// On the cpu backend no rank may allocate device memory or wait for the device between the first and the last step of
// an epoch, or use another device than its own, and the accounts have all that the device holds. On both backends the peak memory of each KIND must be BYTES, on every rank or on the one named.
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

int main(int argc, char** argv) {
  try {
    std::map<std::string, long> expected;
    for (int i = 2; i < argc; ++i) {
      const std::string word = argv[i];
      expected[word.substr(0, word.find('='))] = std::stol(word.substr(word.find('=') + 1));
    }
    std::ifstream file(argc > 1 ? argv[1] : "");
    if (!file) throw std::runtime_error("usage: check_step RECORD [RANK:]KIND=BYTES...");
    int world = 0, hosts = 0, memories = 0, differences = 0;
    std::string backend;
    const auto check = [&](int rank, const std::string& what, long found, long right) {
      if (found == right) return;
      std::printf("rank %d: %ld %s, expected %ld\n", rank, found, what.c_str(), right);
      ++differences;
    };
    for (std::string text; std::getline(file, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line["type"] == "run") {
        world = line["world"];
        backend = line["backend"];
      } else if (line["type"] == "host") {
        ++hosts;
        check(line["rank"], "allocations in steps", line["allocations"], 0);
        check(line["rank"], "waits of the host in steps", line["synchronizations"], 0);
        check(line["rank"], "devices in use", line["devices"], 1);
      } else if (line["type"] == "memory") {
        ++memories;
        const int rank = line["rank"];
        const auto& device = line["device"];
        if (backend == "cpu") check(rank, "bytes in use on the device", device["in_use"], device["accounted"]);
        for (const auto& [key, bytes] : expected) {
          const std::size_t colon = key.find(':');  // "2:activations" is of rank 2 alone
          if (colon != std::string::npos && std::stoi(key) != rank) continue;
          const std::string kind = key.substr(colon + 1);  // all of it where there is no colon
          check(rank, "bytes of " + kind, line["peak"].at(kind), bytes);
        }
      }
    }
    if (memories != world || (backend == "cpu" && hosts != world)) throw std::runtime_error("ranks are missing");
    return differences == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
