// SPDX-License-Identifier: Apache-2.0
#include "common/base/crc32.h"

#include <zlib.h>

namespace workshop {

std::uint32_t crc32_of(const void* data, std::size_t bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(crc32_z(before, static_cast<const unsigned char*>(data), bytes));
}

}  // namespace workshop
