// SPDX-License-Identifier: Apache-2.0
// Reads JSON with nlohmann-json. Its parser is compiled only here: if several files contained it, the linker might keep
// the one of a test, which is not optimized.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace workshop::tools {

// Throws nlohmann::json::exception if the text is not JSON.
nlohmann::json parse_json(const std::string& text);

// The same for a file. Throws std::runtime_error if it cannot be read.
nlohmann::json read_json(const std::string& path);

}  // namespace workshop::tools
