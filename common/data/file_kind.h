// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace workshop {

inline constexpr std::size_t kFileBeginning = 512;  // bytes that are enough for misplaced_kind()

// Returns what a file is if it is none with data, but what a failed download or a forgotten step leaves in its place:
// "an HTML page", "a JSON document", "a zip archive", "a gzip archive", "a tar archive" or "a Git LFS pointer, not the
// file itself". Otherwise "". `beginning`: the first kFileBeginning bytes of the file, or all of it.
std::string misplaced_kind(std::string_view beginning);

// Throws std::runtime_error "PATH: it is an HTML page" if misplaced_kind() knows it.
void require_data(const std::string& path, std::string_view beginning);

}  // namespace workshop
