#include "common/checkpoint_index.h"

#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace workshop {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "workshop checkpoint 1";

std::uint32_t checksum(const std::string& text) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

Json to_json(const CheckpointIndex& index) {
  Json parts = Json::array(), files = Json::object();
  for (const CheckpointIndex::Part& p : index.parts) {
    parts.push_back({{"tensor", p.tensor},
                     {"first", p.first},
                     {"rows", p.rows},
                     {"columns", p.columns},
                     {"stride", p.stride},
                     {"file", p.file},
                     {"key", p.key}});
  }
  for (const auto& [name, file] : index.files) files[name] = {{"bytes", file.bytes}, {"crc32", file.checksum}};
  return {
      {"format", kFormat},        {"program", index.program}, {"ranks", index.ranks},   {"step", index.step},
      {"epoch", index.epoch},     {"samples", index.samples}, {"random", index.random}, {"settings", index.settings},
      {"numbers", index.numbers}, {"tensors", index.tensors}, {"parts", parts},         {"files", files}};
}

CheckpointIndex from_json(const Json& json) {
  CheckpointIndex index;
  json.at("program").get_to(index.program);
  json.at("ranks").get_to(index.ranks);
  json.at("step").get_to(index.step);
  json.at("epoch").get_to(index.epoch);
  json.at("samples").get_to(index.samples);
  json.at("random").get_to(index.random);
  json.at("settings").get_to(index.settings);
  json.at("numbers").get_to(index.numbers);
  json.at("tensors").get_to(index.tensors);
  for (const Json& p : json.at("parts")) {
    index.parts.push_back(
        {p.at("tensor"), p.at("first"), p.at("rows"), p.at("columns"), p.at("stride"), p.at("file"), p.at("key")});
  }
  for (const auto& [name, file] : json.at("files").items()) {
    index.files[name] = {file.at("bytes"), file.at("crc32")};
  }
  return index;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Beginning and end of each row of a part.
using Range = std::pair<std::int64_t, std::int64_t>;

void check(const CheckpointIndex& index) {
  require(index.step >= 0 && index.epoch >= 0 && index.samples >= 0, "its progress is negative");
  std::map<std::string, std::vector<Range>> found;  // in each tensor
  for (const CheckpointIndex::Part& p : index.parts) {
    require(index.tensors.contains(p.tensor), "it has a part of '" + p.tensor + "', a tensor that it does not list");
    require(index.files.contains(p.file), "it has a part in '" + p.file + "', a file that it does not list");
    const std::int64_t all = elements(index.tensors.at(p.tensor));
    const auto inside = [all](std::int64_t x) { return x >= 0 && x <= all; };
    require(inside(p.first) && inside(p.rows) && inside(p.columns) && inside(p.stride) && p.rows > 0 && p.columns > 0 &&
                p.first + (p.rows - 1) * p.stride + p.columns <= all,
            "a part of '" + p.tensor + "' lies outside of it");
    std::vector<Range>& ranges = found[p.tensor];
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const std::int64_t begin = p.first + row * p.stride;
      ranges.emplace_back(begin, begin + p.columns);
      require(std::ssize(ranges) <= all, "parts of '" + p.tensor + "' overlap");
    }
  }
  for (const auto& [name, shape] : index.tensors) {
    std::int64_t end = 0;
    std::sort(found[name].begin(), found[name].end());
    for (const Range& range : found[name]) {
      require(range.first == end, "parts of '" + name + "' overlap or leave a gap at its element " +
                                      std::to_string(std::min(range.first, end)));
      end = range.second;
    }
    require(end == elements(shape),
            "of the " + std::to_string(elements(shape)) + " elements of '" + name + "' it has " + std::to_string(end));
  }
}

}  // namespace

std::int64_t elements(const std::vector<int>& shape) {
  std::int64_t count = 1;
  for (int extent : shape) count *= extent;
  return count;
}

std::string to_text(const CheckpointIndex& index) {
  check(index);
  Json json = to_json(index);
  json["crc32"] = checksum(json.dump());
  return json.dump(1) + "\n";
}

CheckpointIndex parse_index(const std::string& text) {
  CheckpointIndex index;
  try {
    Json json = Json::parse(text);
    require(json.is_object() && json.value("format", Json()) == kFormat, "it is not the index of a checkpoint");
    const std::uint32_t expected = json.at("crc32");
    const bool as_written = text == json.dump(1) + "\n";
    json.erase("crc32");
    require(as_written && checksum(json.dump()) == expected, "its checksum is wrong: it was damaged or edited");
    index = from_json(json);
  } catch (const Json::exception&) {
    throw std::runtime_error("it is not the index of a checkpoint, or not all of it");
  }
  check(index);
  return index;
}

}  // namespace workshop
