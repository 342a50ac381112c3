// SPDX-License-Identifier: Apache-2.0
// Files that a program reads, and those with its results. The latter are written beside and renamed at the end: what
// was there before stays until the new one is complete, also where the options turn out to be wrong, the disk is full,
// or the run is killed.
#pragma once

#include <string>

namespace workshop {

// All of a regular file of at most 100 MB. A link is followed only with `links`; a pipe or a device is no such file.
// Throws std::runtime_error "FILE: what is wrong".
std::string read_file(const std::string& path, bool links);

// Ends the program with status 2 where the file that `option` names cannot be written, is none (a pipe, a folder), or
// is another option's. Changes nothing. An empty path is no file to write.
void check_writable(const std::string& option, const std::string& path);

// Ends the program with status 1 where that fails.
void write_file(const std::string& path, const std::string& text);

}  // namespace workshop
