// SPDX-License-Identifier: Apache-2.0
// replay FOLDER: runs a harness on the files of a folder, without libFuzzer.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs;
  if (argc > 1) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  for (const auto& path : inputs) {
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // so that this is the last line if the harness crashes
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    // A separate copy, so that a sanitizer sees reads past its end.
    const std::vector<std::uint8_t> input(text.begin(), text.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  if (!inputs.empty()) return 0;
  std::fprintf(stderr, "no inputs to go through\n");
  return 1;
}
