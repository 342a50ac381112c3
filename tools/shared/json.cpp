// SPDX-License-Identifier: Apache-2.0
#include "tools/shared/json.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace workshop::tools {

nlohmann::json parse_json(const std::string& text) { return nlohmann::json::parse(text); }

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return parse_json({std::istreambuf_iterator<char>(file), {}});
}

}  // namespace workshop::tools
