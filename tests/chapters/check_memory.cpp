// The peak memory of each rank: check_memory RECORD [RANK KIND BYTES]... Every rank and kind that is named must have
// exactly so many bytes at its peak.
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "");
  if (!file || argc % 3 != 2) {
    std::printf("usage: check_memory RECORD [RANK KIND BYTES]...\n");
    return 2;
  }
  std::map<int, nlohmann::json> peaks;  // by rank
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line["type"] == "memory") peaks[line["rank"]] = line["peak"];
  }
  int differences = 0;
  for (int i = 2; i < argc; i += 3) {
    const int rank = std::stoi(argv[i]);
    const std::string kind = argv[i + 1];
    const long expected = std::stol(argv[i + 2]), found = peaks[rank].value(kind, -1L);
    if (found == expected) continue;
    std::printf("rank %d: %ld bytes of %s, expected %ld\n", rank, found, kind.c_str(), expected);
    ++differences;
  }
  return differences == 0 ? 0 : 1;
}
