// SPDX-License-Identifier: Apache-2.0
// Reads input files and writes result files. A result is written to a temporary file and renamed at the end, so the
// previous file stays until the new one is complete, even if the options are wrong, the disk is full, or the run is
// killed.
#pragma once

#include <string>

namespace workshop {

// Reads a regular file (no pipe or device) of at most 100 MB. Follows a symbolic link only if `links`.
// Throws std::runtime_error "FILE: what is wrong".
std::string read_file(const std::string& path, bool links);

// Ends the program with status 2 if the file given by `option` cannot be written, is not a regular file, or is also
// the file of another option. Changes nothing. Ignores an empty path.
void check_writable(const std::string& option, const std::string& path);

// Writes a file. Ends the program with status 1 if that fails.
void write_file(const std::string& path, const std::string& text);

}  // namespace workshop
