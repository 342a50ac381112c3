// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/index.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "common/base/crc32.h"
#include "common/base/untrusted.h"
#include "common/checkpoint/safetensors.h"

namespace workshop {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "workshop checkpoint 1";
constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMostChecksum = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMostRuns = 1 << 24;  // runs of elements, over the parts of all tensors

std::uint32_t checksum(const std::string& text) { return crc32_of(text.data(), text.size()); }

Json to_json(const CheckpointIndex& index) {
  Json parts = Json::array(), files = Json::object();
  for (const CheckpointIndex::StoredPart& p : index.parts) {
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

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Returns a whole number from 0 to `most`. The JSON library's conversions would also accept 1.5 and true, and truncate
// 2^32 + 5 to 5.
std::int64_t whole(const Json& object, const char* key, std::int64_t most = kMostInt) {
  const Json& number = object.at(key);
  const bool in_range = number.is_number_unsigned() && number.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
  require(in_range, "its '" + std::string(key) + "' is not a whole number from 0 to " + std::to_string(most));
  return number.get<std::int64_t>();
}

std::vector<int> read_shape(const std::string& tensor, const Json& json) {
  std::vector<int> shape;
  for (const Json& extent : json) {
    const bool in_range = extent.is_number_unsigned() && extent.get<std::uint64_t>() <= kMostInt;
    require(in_range, "the shape of " + quote(tensor) + " is not a list of whole numbers below 2^31");
    shape.push_back(extent);
  }
  return shape;
}

CheckpointIndex from_json(const Json& json) {
  const auto position = [](const Json& part, const char* key) {
    return whole(part, key, std::numeric_limits<std::int64_t>::max());
  };
  CheckpointIndex index;
  json.at("program").get_to(index.program);
  index.ranks = static_cast<int>(whole(json, "ranks"));
  index.step = static_cast<int>(whole(json, "step"));
  index.epoch = static_cast<int>(whole(json, "epoch"));
  index.samples = static_cast<int>(whole(json, "samples"));
  json.at("random").get_to(index.random);
  json.at("settings").get_to(index.settings);
  for (const auto& [name, number] : json.at("numbers").items()) {
    require(number.is_number(), "its " + quote(name) + " is not a number");
    index.numbers[name] = number;
  }
  for (const auto& [name, shape] : json.at("tensors").items()) index.tensors[name] = read_shape(name, shape);
  for (const Json& p : json.at("parts")) {
    index.parts.push_back({p.at("tensor"), position(p, "first"), position(p, "rows"), position(p, "columns"),
                           position(p, "stride"), p.at("file"), p.at("key")});
  }
  for (const auto& [name, file] : json.at("files").items()) {
    index.files[name] = {static_cast<std::uint64_t>(position(file, "bytes")),
                         static_cast<std::uint32_t>(whole(file, "crc32", kMostChecksum))};
  }
  return index;
}

// Returns whether `name` can only be a file in the checkpoint's own folder.
bool is_plain_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  return !name.empty() && name.size() <= 100 && name[0] != '.' && std::all_of(name.begin(), name.end(), plain);
}

// Returns the number of elements of each tensor. It must fit an int, because positions in a tensor are ints everywhere.
std::map<std::string, std::int64_t> count_elements(const CheckpointIndex& index) {
  std::map<std::string, std::int64_t> counts;
  for (const auto& [name, shape] : index.tensors) {
    std::int64_t count = 1;
    for (int extent : shape) {
      require(extent > 0 && count <= kMostInt / extent, quote(name) + " has no elements, or 2^31 or more");
      count *= extent;
    }
    counts[name] = count;
  }
  return counts;
}

// Beginning and end of elements that a part holds without a gap.
using Range = std::pair<std::int64_t, std::int64_t>;

void check_parts(const CheckpointIndex& index) {
  const std::map<std::string, std::int64_t> counts = count_elements(index);
  std::map<std::string, std::vector<Range>> found;  // per tensor
  std::int64_t runs = 0;
  for (const CheckpointIndex::StoredPart& p : index.parts) {
    const auto tensor = counts.find(p.tensor);
    require(tensor != counts.end(), "it has a part of " + quote(p.tensor) + ", a tensor that it does not list");
    require(index.files.contains(p.file), "it has a part in " + quote(p.file) + ", a file that it does not list");
    const std::int64_t all = tensor->second;
    const auto inside = [all](std::int64_t x) { return x >= 0 && x <= all; };
    require(inside(p.first) && inside(p.rows) && inside(p.columns) && inside(p.stride) && p.rows > 0 && p.columns > 0 &&
                p.first + (p.rows - 1) * p.stride + p.columns <= all,
            "a part of " + quote(p.tensor) + " lies outside of it");
    require(p.rows <= all / p.columns, "parts of " + quote(p.tensor) + " overlap");
    std::vector<Range>& ranges = found[p.tensor];
    if (p.stride == p.columns) {
      ranges.emplace_back(p.first, p.first + p.rows * p.columns);
      continue;
    }
    runs += p.rows;
    require(runs <= kMostRuns, "its tensors are cut into more than " + std::to_string(kMostRuns) + " runs of elements");
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const std::int64_t begin = p.first + row * p.stride;
      ranges.emplace_back(begin, begin + p.columns);
    }
  }
  for (const auto& [name, all] : counts) {
    std::int64_t end = 0;
    std::sort(found[name].begin(), found[name].end());
    for (const Range& range : found[name]) {
      require(range.first == end, "parts of " + quote(name) + " overlap or leave a gap at its element " +
                                      std::to_string(std::min(range.first, end)));
      end = range.second;
    }
    require(end == all,
            "of the " + std::to_string(all) + " elements of " + quote(name) + ", it has only " + std::to_string(end));
  }
}

void check_files(const CheckpointIndex& index) {
  std::map<std::string, std::uint64_t> values;  // bytes of values per file
  for (const CheckpointIndex::StoredPart& p : index.parts) values[p.file] += p.rows * p.columns * sizeof(float);
  for (const auto& [name, file] : index.files) {
    require(is_plain_name(name), "its file " + quote(name) + " is not a plain name");
    require(file.bytes >= values[name] && file.bytes - values[name] <= 8 + kLongestHeader,
            "its file " + quote(name) + " has a size that does not match the parts in it");
  }
}

void check(const CheckpointIndex& index) {
  require(index.step >= 0 && index.epoch >= 0 && index.samples >= 0, "its progress is negative");
  require(index.epoch <= index.step,
          "it is in epoch " + std::to_string(index.epoch) + " after " + std::to_string(index.step) + " steps");
  check_parts(index);
  check_files(index);
}

}  // namespace

std::string to_text(const CheckpointIndex& index) {
  check(index);
  Json json = to_json(index);
  json["crc32"] = checksum(json.dump());
  return json.dump(1) + "\n";
}

CheckpointIndex parse_index(const std::string& text) {
  CheckpointIndex index;
  try {
    Json json = parse_json(text);
    require(json.is_object() && json.value("format", Json()) == kFormat, "it is not the index of a checkpoint");
    const std::int64_t expected = whole(json, "crc32", kMostChecksum);
    const bool as_written = text == json.dump(1) + "\n";
    json.erase("crc32");
    require(as_written && checksum(json.dump()) == expected, "its checksum is wrong: it was damaged or edited");
    index = from_json(json);
  } catch (const Json::exception&) {
    throw std::runtime_error("it is not the index of a checkpoint, or is incomplete");
  }
  check(index);
  return index;
}

}  // namespace workshop
