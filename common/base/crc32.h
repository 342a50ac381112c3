// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace workshop {

// Returns the CRC-32 of these bytes; `before` is that of the bytes in front of them.
std::uint32_t crc32_of(const void* data, std::size_t bytes, std::uint32_t before = 0);

}  // namespace workshop
