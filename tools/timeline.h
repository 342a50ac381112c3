// SPDX-License-Identifier: Apache-2.0
// Reads the timelines that programs write with --timeline.
#pragma once

#include <string>

namespace workshop::tools {

// Seconds of a whole run, on average over its ranks, once they have begun to compute.
struct Communication {
  double seconds = 0;  // in which a rank communicates
  double exposed = 0;  // and does not compute meanwhile
};

// Throws std::exception where the file is no timeline.
Communication read_communication(const std::string& path);

}  // namespace workshop::tools
