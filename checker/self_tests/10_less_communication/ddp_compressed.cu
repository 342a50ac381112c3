// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `ddp_compressed`: the signs of values that do not fill the last byte. A run never
// shows the bits behind them, and hardly ever the sign of a zero.
#include <cstdint>
#include <vector>

// Only one of its kernels is called here.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "10_less_communication/compression.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

const SelfTest signs([](const Options& options, cudaStream_t stream) {
  if (options.json().find("\"sign\"") == std::string::npos) return;  // otherwise this TODO may not be filled in yet
  constexpr int kValues = 11, kBehind = 5;
  const DeviceBuffer<std::uint8_t> bytes(code_bytes(Code::sign, kValues), Memory::data);
  DeviceBuffer<float> values(kValues + kBehind, Memory::data), scale(1, Memory::data);
  values.upload({1, -1, 0, 2, -3, -2, 3, 0, -1, 0, 1, 4, 4, -4, 4, 4}, stream);
  scale.upload({1}, stream);
  launch(encode, static_cast<int>(bytes.size()), stream, bytes.data(), values.data(), scale.data(), Code::sign,
         kValues);
  const std::vector<std::uint8_t> found = bytes.download(stream);
  probe("10.M", "bytes of signs of 11 values: 1 -1 0 2 -3 -2 3 0 -1 0 1", std::vector<int>(found.begin(), found.end()));
});

}  // namespace
}  // namespace workshop
