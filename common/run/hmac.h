// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA256 (RFC 2104, FIPS 180-4): who knows a key proves it without telling it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace workshop {

using Proof = std::array<std::uint8_t, 32>;

Proof hmac_sha256(std::string_view key, std::string_view message);

// Takes as long whatever they are, so that the time does not tell how much of a guess was right.
bool equal_in_constant_time(const Proof& a, const Proof& b);

}  // namespace workshop
