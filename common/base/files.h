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

// Keeps the file given by `option` for this run until write_file() has written it, or the program ends. Ends the
// program with status 2 if another run has it, or if the file cannot be written, is not a regular file, or is also the
// file of another option. Leaves the file itself as it is. Ignores an empty path.
void claim_file(const std::string& option, const std::string& path);

// Gives up what claim_file() has kept. Programs that end by end_job() or exit() need not call it.
void release_files();

// Writes a file. Ends the program with status 1 if that fails.
void write_file(const std::string& path, const std::string& text);

}  // namespace workshop
