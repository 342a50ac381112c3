// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace workshop {

inline constexpr std::size_t kFileBeginning = 512;  // bytes that are enough for misplaced_kind()

// Recognizes what a failed download or a forgotten step leaves in the place of a data file. Returns "an HTML page", "a
// JSON document", "a zip archive", "a gzip archive", "a tar archive" or "a Git LFS pointer, not the file itself", and
// "" for all other files. `beginning`: the first kFileBeginning bytes of the file, or all of it.
std::string misplaced_kind(std::string_view beginning);

// Throws std::runtime_error "PATH: it is an HTML page" if misplaced_kind() knows it.
void require_data(const std::string& path, std::string_view beginning);

}  // namespace workshop
