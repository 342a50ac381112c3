// SPDX-License-Identifier: Apache-2.0
// index.json of a checkpoint. Tries the input as it is, and again with a correct checksum, which anyone can compute.
#include "common/checkpoint/index.h"

#include <zlib.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/base/random.h"
#include "tests/fuzz/harness.h"

namespace {

using Json = nlohmann::json;

void read(const std::string& text) {
  workshop::CheckpointIndex index;
  try {
    index = workshop::parse_index(text);
  } catch (const std::runtime_error& error) {
    return require_one_line(error.what());
  }
  const std::string written = workshop::to_text(index);
  require(workshop::to_text(workshop::parse_index(written)) == written, "an index that is written and read is another");
  workshop::Generator generator(0);
  try {
    generator.set_state(index.random);
  } catch (const std::runtime_error& error) {
    return require_one_line(error.what());
  }
  generator.randperm(10);
}

// Returns the text with a correct checksum, or "" if it is not an object.
std::string with_checksum(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth < 8; };
  Json json = Json::parse(text, shallow, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  json.erase("crc32");
  try {
    const std::string unsigned_text = json.dump();
    const auto* bytes = reinterpret_cast<const unsigned char*>(unsigned_text.data());
    json["crc32"] = crc32_z(0, bytes, unsigned_text.size());
    return json.dump(1) + "\n";
  } catch (const Json::exception&) {
    return "";
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  read(with_checksum(text));
  return 0;
}
