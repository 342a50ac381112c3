// SPDX-License-Identifier: Apache-2.0
// Reads JSON with nlohmann-json, whose parser is compiled once: the linker would take that of any file which has one,
// and those of the tests are not optimized.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace workshop::tools {

// Throws nlohmann::json::exception where the text is no JSON.
nlohmann::json parse_json(const std::string& text);

// The same of a file. Throws std::runtime_error where it cannot be read.
nlohmann::json read_json(const std::string& path);

}  // namespace workshop::tools
