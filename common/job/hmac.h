// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA256 (RFC 2104, FIPS 180-4) proves that the sender of a message knows a key, without revealing the key.
// OpenSSL computes it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace workshop {

using Proof = std::array<std::uint8_t, 32>;

Proof hmac_sha256(std::string_view key, std::string_view message);

// Takes the same time for all values, so that the time does not reveal how much of a guess was right.
bool equal_in_constant_time(const Proof& a, const Proof& b);

}  // namespace workshop
