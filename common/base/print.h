// SPDX-License-Identifier: Apache-2.0
// Output that appears once, not once per rank.
#pragma once

namespace workshop {

// printf on rank 0 only.
[[gnu::format(printf, 1, 2)]] void print0(const char* format, ...);

}  // namespace workshop
