// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/untrusted.h"
#include "common/checkpoint/checkpoints.h"
#include "common/checkpoint/folder.h"
#include "common/checkpoint/index.h"
#include "common/checkpoint/replicas.h"
#include "common/checkpoint/safetensors.h"

namespace workshop {
namespace {

// ---- replicas ------------------------------------------------------------------------------------------------------

TEST(CheckpointReplicas, TheFirstPartThatDiffersIsNamed) {
  const HeldPart weight{"0.weight", "whole", 1}, bias{"0.bias", "whole", 2}, other{"0.bias", "whole", 3};
  EXPECT_EQ(parted_replica({{weight, bias}, {weight, bias}}), "");
  EXPECT_EQ(parted_replica({{weight, bias}, {weight, bias}, {weight, other}}),
            "'0.bias' on rank 2 differs from that on rank 0");
  // Different parts of a tensor have nothing in common.
  EXPECT_EQ(parted_replica({{{"0.weight", "first half", 1}}, {{"0.weight", "second half", 2}}}), "");
  // Ranks that hold no common part are compared with those that do.
  EXPECT_EQ(parted_replica({{weight}, {bias}, {other}}), "'0.bias' on rank 2 differs from that on rank 1");
}

// ---- parts ---------------------------------------------------------------------------------------------------------

// Returns the elements of the whole tensor that the parts hold, in the parts' order. Checks that they have the same
// order in the local array.
std::vector<std::int64_t> elements_of(const std::vector<TensorPart>& parts, const float* values) {
  std::vector<std::int64_t> all;
  for (const TensorPart& p : parts) {
    EXPECT_EQ(p.values - values, static_cast<std::ptrdiff_t>(all.size()));
    for (std::int64_t row = 0; row < p.rows; ++row) {
      for (std::int64_t column = 0; column < p.columns; ++column) all.push_back(p.first + row * p.stride + column);
    }
  }
  return all;
}

TEST(TensorPart, RangesOfABlockHoldItsElementsInOrder) {
  float values[1];
  const TensorPart block{"w", {5, 7}, 9, 4, 3, 7, values};  // rows 1 to 4, columns 2 to 4
  const std::vector<std::int64_t> all = elements_of({block}, values);
  ASSERT_EQ(all.size(), 12u);
  for (std::int64_t begin = 0; begin <= 12; ++begin) {
    for (std::int64_t end = begin; end <= 12; ++end) {
      const std::vector<TensorPart> parts = range_of(block, begin, end, values);
      EXPECT_LE(parts.size(), 3u);
      EXPECT_EQ(elements_of(parts, values), std::vector<std::int64_t>(all.begin() + begin, all.begin() + end));
    }
  }
}

// ---- safetensors ---------------------------------------------------------------------------------------------------

std::string temporary(const char* name) { return (std::filesystem::path(testing::TempDir()) / name).string(); }

std::string write_file(const std::string& header, const std::string& data) {
  const std::string path = temporary("file.safetensors");
  const std::uint64_t length = header.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  std::ofstream(path, std::ios::binary) << content << header << data;
  return path;
}

// Returns the reader's error message for a file, without the path at its start.
std::string complaint(const std::string& header, const std::string& data) {
  const std::string path = write_file(header, data);
  try {
    const SafetensorsFile file(path);
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with(path)) << message;
    return message.substr(path.size());
  }
  return "";
}

TEST(Safetensors, ReadsWhatItWrote) {
  const std::string path = temporary("written.safetensors");
  std::vector<float> values(7);
  std::iota(values.begin(), values.end(), 1.0f);
  SafetensorsWriter writer(path, {{"b", {2, 3}}, {"a", {1}}, {"empty", {0, 4}}, {"scalar", {}}});
  writer.write(values.data(), 4);
  writer.write(values.data() + 4, 3);
  EXPECT_THROW(writer.finish(), std::logic_error);  // the scalar is missing
  writer.write(values.data(), 1);
  writer.finish();
  const SafetensorsFile file(path);
  EXPECT_EQ(file.bytes(), writer.bytes());
  EXPECT_EQ(file.checksum(), writer.checksum());
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file["b"].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::vector<float>(file["b"].values, file["b"].values + 6), std::vector<float>(&values[0], &values[6]));
  EXPECT_EQ(file["a"].values[0], 7);
  EXPECT_EQ(file["scalar"].values[0], 1);
  EXPECT_EQ(file["empty"].count, 0);
  EXPECT_THROW(file["c"], std::runtime_error);
}

TEST(Safetensors, NamesWhatIsWrong) {
  const std::string eight(8, '\0');
  const auto entry = [](const char* shape, const char* offsets, const char* dtype = "\"F32\"") {
    return std::string(R"({"dtype":)") + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const auto one = [&](const char* shape, const char* offsets, const char* dtype = "\"F32\"") {
    std::string header = R"({"w":)" + entry(shape, offsets, dtype) + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return header;
  };
  EXPECT_EQ(complaint(one("[2]", "[0,8]"), eight), "");
  const std::pair<std::string, const char*> wrong[] = {
      {complaint("{\"w\":", ""), "not a JSON object"},
      {complaint("[1]", ""), "not a JSON object"},
      {complaint(one("[2]", "[0,8]", "\"F16\""), eight), "\"F16\", not F32"},
      {complaint(one("[2]", "[0,8]", "7"), eight), "7, not F32"},
      {complaint(one("[2]", "[0,16]"), eight), "lie outside the file"},
      {complaint(one("[2]", "[8,0]"), eight), "lie outside the file"},
      {complaint(one("[2]", "[2,8]"), eight), "lie outside the file"},
      {complaint(one("[3]", "[0,8]"), eight), "larger than the file"},
      {complaint(one("[1]", "[0,8]"), eight), "does not match its offsets"},
      {complaint(one("[4611686018427387904,4]", "[0,0]"), ""), "larger than the file"},
      {complaint(one("[-2]", "[0,8]"), eight), "not a list of whole numbers"},
      {complaint(one("[2.5]", "[0,8]"), eight), "not a list of whole numbers"},
      {complaint(one("[18446744073709551615]", "[0,8]"), eight), "larger than the file"},
      {complaint(one("2", "[0,8]"), eight), "lacks its type, shape or offsets"},
      {complaint(one("[2]", "{}"), eight), "lacks its type, shape or offsets"},
      {complaint(R"({"w": {}} )", eight), "lacks its type, shape or offsets"},
      {complaint(one("[2]", "[0,8]"), eight + "x"), "it has "},
      {complaint(one("[1]", "[4,8]"), eight), "overlap or leave a gap"},
      {complaint(R"({"v":)" + entry("[2]", "[0,8]") + R"(,"w":)" + entry("[1]", "[0,4]") + "} ", eight), "another one"},
      {complaint(R"({"v":)" + entry("[2]", "[0,8]") + R"(,"v":)" + entry("[2]", "[0,8]") + "} ", eight), "'v' twice"},
      {complaint(R"({"v":)" + entry("[2]", "[0,8]") + "}", eight), "not aligned"},
      {complaint(one("[2]", "[0,8]", (std::string(100'000, '[') + std::string(100'000, ']')).c_str()), eight),
       "nested too deep"},
      {complaint(std::string(100'000, '['), ""), "nested too deep"},
      {complaint(one("[2]", "[0,8]", ("\"" + std::string(1000, 'F') + "\"").c_str()), eight), "FFF..., not F32"},
      {complaint(R"({"a\nb":)" + entry("[3]", "[0,8]") + "} ", eight), "'a?b' would be larger"},
  };
  for (const auto& [found, expected] : wrong) EXPECT_NE(found.find(expected), std::string::npos) << found << expected;

  const std::string path = write_file(one("[2]", "[0,8]"), eight);
  for (std::uintmax_t size = 0, all = std::filesystem::file_size(path); size < all; ++size) {
    std::filesystem::resize_file(write_file(one("[2]", "[0,8]"), eight), size);
    EXPECT_THROW(SafetensorsFile{path}, std::runtime_error) << size;
  }
  EXPECT_THROW(SafetensorsFile("/nowhere/file"), std::runtime_error);
  EXPECT_THROW(SafetensorsFile("/"), std::runtime_error);
  const std::string link = temporary("link.safetensors"), pipe = temporary("pipe.safetensors");
  std::filesystem::remove(link);
  std::filesystem::remove(pipe);
  std::filesystem::create_symlink(write_file(one("[2]", "[0,8]"), eight), link);
  EXPECT_THROW(SafetensorsFile{link}, std::runtime_error);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsFile{pipe}, std::runtime_error);  // and does not wait for a writer
  std::ofstream(path, std::ios::binary) << std::string(8, '\xff');
  EXPECT_THROW(SafetensorsFile{path}, std::runtime_error);
}

// ---- index ---------------------------------------------------------------------------------------------------------

CheckpointIndex small_index() {
  CheckpointIndex index;
  index.program = "02_ddp/ddp";
  index.ranks = 2;
  index.step = 3;
  index.samples = 96;
  index.random = "1 2 3";
  index.settings = {{"layers", "[6,4,2]"}};
  index.numbers = {{"loss", 0.1}};
  index.tensors = {{"w", {2, 3}}};
  index.parts = {{"w", 0, 2, 2, 3, "f", "w[0]"}, {"w", 2, 2, 1, 3, "f", "w[2]"}};
  index.files = {{"f", {100, 7}}};
  return index;
}

TEST(CheckpointIndex, ReadsWhatItWrote) {
  const CheckpointIndex index = parse_index(to_text(small_index()));
  EXPECT_EQ(to_text(index), to_text(small_index()));
  EXPECT_EQ(index.parts[1].columns, 1);
  EXPECT_EQ(index.numbers.at("loss"), 0.1);
  EXPECT_EQ(index.files.at("f").checksum, 7u);
}

TEST(CheckpointIndex, EveryChangedByteIsFound) {
  const std::string text = to_text(small_index());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    EXPECT_THROW(parse_index(changed), std::runtime_error) << i;
    EXPECT_THROW(parse_index(text.substr(0, i)), std::runtime_error) << i;
  }
}

TEST(CheckpointIndex, PartsMustMakeUpTheTensors) {
  const auto refused = [](auto change) {
    CheckpointIndex index = small_index();
    change(index);
    EXPECT_THROW(to_text(index), std::runtime_error);
  };
  refused([](CheckpointIndex& i) { i.parts.pop_back(); });
  refused([](CheckpointIndex& i) { i.parts[0].first = 2; });
  refused([](CheckpointIndex& i) { i.parts[1].first = 1; });  // a gap and an overlap of equal size
  refused([](CheckpointIndex& i) { i.parts[0].first = -1; });
  refused([](CheckpointIndex& i) { i.parts[0].stride = 1'000'000'000'000; });
  refused([](CheckpointIndex& i) { i.parts[0].tensor = "v"; });
  refused([](CheckpointIndex& i) { i.parts[0].file = "g"; });
  refused([](CheckpointIndex& i) { i.parts.push_back(i.parts[0]); });
}

// Returns the text of an index that `change` has modified but whose checksum is correct.
template <typename Change>
std::string forged(Change change) {
  nlohmann::json json = nlohmann::json::parse(to_text(small_index()));
  change(json);
  json.erase("crc32");
  const std::string text = json.dump();
  json["crc32"] = crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  return json.dump(1) + "\n";
}

template <typename Change>
std::string complaint_about(Change change) {
  try {
    parse_index(forged(change));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(CheckpointIndex, ARightChecksumDoesNotMakeItTrue) {
  using Json = nlohmann::json;
  EXPECT_EQ(complaint_about([](Json&) {}), "");
  const auto set = [](const char* pointer, Json value) {
    return complaint_about([&](Json& json) { json[Json::json_pointer(pointer)] = value; });
  };
  const Json huge = std::int64_t{1} << 62;
  const auto file = [](const std::string& name) {
    return complaint_about([&](Json& json) {
      json["files"] = {{name, {{"bytes", 100}, {"crc32", 7}}}};
      for (Json& part : json["parts"]) part["file"] = name;
    });
  };
  const std::pair<std::string, const char*> wrong[] = {
      {set("/step", 1.5), "its 'step' is not a whole number from 0 to 2147483647"},
      {set("/step", true), "its 'step' is not a whole number"},
      {set("/step", "3"), "its 'step' is not a whole number"},
      {set("/step", -3), "its 'step' is not a whole number"},
      {set("/step", (std::int64_t{1} << 32) + 5), "its 'step' is not a whole number"},
      {set("/ranks", 1e300), "its 'ranks' is not a whole number"},
      {set("/epoch", 2147483647), "it is in epoch 2147483647 after 3 steps"},
      {set("/numbers/loss", true), "its 'loss' is not a number"},
      {set("/parts/0/rows", 1.5), "its 'rows' is not a whole number"},
      {set("/parts/0/rows", huge), "lies outside of it"},
      {set("/files/f/bytes", true), "its 'bytes' is not a whole number"},
      {set("/files/f/bytes", 20), "has a size that does not match"},
      {set("/files/f/bytes", std::int64_t{1} << 40), "has a size that does not match"},
      {set("/files/f/crc32", std::int64_t{1} << 32), "its 'crc32' is not a whole number"},
      {set("/tensors/w", {2, 3.0}), "the shape of 'w' is not a list of whole numbers"},
      {set("/tensors/w", {2, true}), "the shape of 'w' is not a list of whole numbers"},
      {set("/tensors/w", {2, (std::int64_t{1} << 32) + 3}), "the shape of 'w' is not a list of whole numbers"},
      {set("/tensors/v", {65536, 65536, 65536, 65536}), "'v' has no elements, or 2^31 or more"},
      {set("/tensors/v", {2147483647, 2147483647, 2147483647}), "'v' has no elements"},
      {set("/tensors/v", {5, 0}), "'v' has no elements"},
      {complaint_about([&](Json& json) {
         json["tensors"]["w"] = {2147483647};
         for (Json& part : json["parts"]) part["rows"] = 1'000'000'000, part["stride"] = 2;
       }),
       "runs of elements"},
      {set("/parts/0/tensor", std::string(10'000, 'x')), "xxx...', a tensor that it does not list"},
      {set("/parts/0/tensor", "\x1b[2J\n"), "'?[2J?', a tensor"},
      {file("/etc/passwd"), "'/etc/passwd' is not a plain name"},
      {file("../f"), "is not a plain name"},
      {file(".."), "is not a plain name"},
      {file(""), "is not a plain name"},
      {file(std::string("f\0g", 3)), "is not a plain name"},
      {set("/format", Json::parse(std::string(100, '[') + std::string(100, ']'))), "nested too deep"},
  };
  for (const auto& [found, expected] : wrong) {
    EXPECT_NE(found.find(expected), std::string::npos) << found << "; expected " << expected;
    EXPECT_LT(found.size(), 200u);
  }
  // The reader must reject it before it looks at anything else.
  const std::string deep = R"({"format":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THROW(parse_index(deep), std::runtime_error);
}

// ---- folders -------------------------------------------------------------------------------------------------------

namespace fs = std::filesystem;

fs::path empty_folder(const char* name) {
  const fs::path folder = fs::absolute(name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

TEST(CheckpointFolder, AnIndexIsARegularFileOfSensibleLength) {
  const fs::path folder = empty_folder("index"), path = folder / "index.json";
  const auto refused = [&] {
    EXPECT_THROW(read_index(folder), std::runtime_error);
    fs::remove(path);
  };
  std::ofstream(path) << to_text(small_index());
  EXPECT_EQ(read_index(folder).step, 3);
  fs::rename(path, folder / "other.json");
  fs::create_symlink(folder / "other.json", path);
  refused();
  fs::create_symlink("/dev/zero", path);
  refused();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  refused();
  fs::create_directory(path);
  refused();
  std::ofstream(path) << "{";
  fs::resize_file(path, std::uintmax_t{1} << 40);  // a sparse terabyte, which takes no space
  refused();
}

TEST(CheckpointFolder, WhatAKilledProcessLeftGoes) {
  const fs::path folder = empty_folder("unfinished");
  for (const char* name : {"step-00000001", ".step-00000002", ".best-00000003", ".mine", ".step-4"}) {
    fs::create_directory(folder / name);
    std::ofstream(folder / name / "file") << "x";
  }
  remove_unfinished(folder);
  EXPECT_FALSE(fs::exists(folder / ".step-00000002"));
  EXPECT_FALSE(fs::exists(folder / ".best-00000003"));
  for (const char* name : {"step-00000001", ".mine", ".step-4"}) EXPECT_TRUE(fs::exists(folder / name / "file"));
}

TEST(CheckpointFolder, TheOneBefore) {
  const fs::path folder = empty_folder("before");
  for (const char* name : {"step-00000001", "step-00000020", "step-00000100"}) {
    fs::create_directory(folder / name);
    std::ofstream(folder / name / "index.json") << "{}";
  }
  EXPECT_EQ(checkpoint_before(folder / "step-00000100"), (folder / "step-00000020").string());
  EXPECT_EQ(checkpoint_before(folder / "step-00000001"), "");
  EXPECT_EQ(checkpoint_before(folder / "best-00000100"), "");
}

// ---- random state --------------------------------------------------------------------------------------------------

TEST(Generator, GoesOnFromItsState) {
  Generator generator(7);
  float value[3];
  generator.randn(value, 3);  // leaves a second normal number for the next call
  Generator other(1);
  other.set_state(generator.state());
  for (int i = 0; i < 2000; ++i) {
    generator.randn(value, 1);
    const float expected = value[0];
    other.randn(value, 1);
    ASSERT_EQ(value[0], expected);
  }
  for (const char* text : {"", "1 2 3", "no numbers"}) EXPECT_THROW(other.set_state(text), std::runtime_error);
  EXPECT_THROW(other.set_state(generator.state() + " 1"), std::runtime_error);
  // A position of 625 would lie beyond the 624 words of the engine's state.
  const std::string before = other.state();
  std::string words;
  for (int i = 0; i < 624; ++i) words += "1 ";
  EXPECT_THROW(other.set_state(words + "625 0"), std::runtime_error);
  EXPECT_EQ(other.state(), before);
  EXPECT_NO_THROW(other.set_state(words + "624 0"));
}

TEST(RandomSampler, GoesOnInAnyEpoch) {
  RandomSampler sampler(50, true, Generator(3)), again(50, true, Generator(3)), restored(50, true, Generator(99));
  const std::string first = sampler.state(0);
  std::vector<std::vector<int>> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) epochs.push_back(sampler.next_epoch());
  restored.go_to(3, sampler.state(3));  // the current epoch
  EXPECT_EQ(restored.next_epoch(), epochs[3]);
  restored.go_to(4, sampler.state(4));  // the next epoch
  EXPECT_EQ(restored.next_epoch(), sampler.next_epoch());
  again.go_to(3, "");  // without a state
  EXPECT_EQ(again.next_epoch(), epochs[3]);
  again.go_to(0, first);
  EXPECT_EQ(again.next_epoch(), epochs[0]);
}

}  // namespace
}  // namespace workshop
