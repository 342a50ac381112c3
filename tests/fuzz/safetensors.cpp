// SPDX-License-Identifier: Apache-2.0
// A safetensors file: header length, header and values.
#include "common/checkpoint/safetensors.h"

#include <cstring>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "tests/fuzz/harness.h"

namespace {

// Reads all values of all tensors, which must lie within the file.
void read(std::string_view content) {
  try {
    float sum = 0;
    for (const auto& [name, tensor] : workshop::parse_safetensors(content)) {
      const auto* values = reinterpret_cast<const char*>(tensor.values);
      require(values >= content.data() && values + tensor.count * sizeof(float) <= content.data() + content.size(),
              "a tensor outside of its file");
      for (std::int64_t i = 0; i < tensor.count; ++i) sum += tensor.values[i];
    }
    volatile float used = sum;
    static_cast<void>(used);
  } catch (const std::runtime_error& error) {
    require_one_line(error.what());
  }
}

}  // namespace

// Tries the input as it is, and again as a header, with its length in front.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // As in a mapped file, the content must start at a multiple of any type's size.
  std::vector<std::uint64_t> file(size / 8 + 2);
  char* bytes = reinterpret_cast<char*>(file.data());
  std::memcpy(bytes, data, size);
  read({bytes, size});
  const std::uint64_t length = size;
  std::memcpy(bytes, &length, 8);
  std::memcpy(bytes + 8, data, size);
  read({bytes, 8 + size});
  return 0;
}
