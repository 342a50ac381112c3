// SPDX-License-Identifier: Apache-2.0
// What a program prints, once for all ranks.
#pragma once

namespace workshop {

// printf on rank 0 only.
[[gnu::format(printf, 1, 2)]] void print0(const char* format, ...);

}  // namespace workshop
