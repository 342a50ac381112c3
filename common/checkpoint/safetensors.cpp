// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/base/crc32.h"
#include "common/base/untrusted.h"

namespace workshop {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::json;

constexpr std::uint64_t kPrefix = 8;  // bytes that hold the header's length

[[noreturn]] void system_failed(const std::string& path, const char* what) {
  throw std::runtime_error(path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

// ---- writing -------------------------------------------------------------------------------------------------------

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<NamedShape>& tensors)
    : path_(path), file_(std::fopen(path.c_str(), "wb")) {
  if (file_ == nullptr) system_failed(path, "cannot be written");
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t offset = 0;
  for (const auto& [name, shape] : tensors) {
    const std::uint64_t end = offset + static_cast<std::uint64_t>(elements(shape)) * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the values are aligned
  const std::uint64_t length = text.size();
  expected_ = kPrefix + length + offset;
  append(&length, kPrefix);
  append(text.data(), length);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void SafetensorsWriter::append(const void* data, std::size_t size) {
  if (std::fwrite(data, 1, size, file_) != size) system_failed(path_, "cannot be written");
  bytes_ += size;
  checksum_ = crc32_of(data, size, checksum_);
}

void SafetensorsWriter::finish() {
  if (bytes_ != expected_) throw std::logic_error(path_ + ": its header does not match the values written");
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) system_failed(path_, "cannot be written");
  const int status = std::fclose(file_);
  file_ = nullptr;
  if (status != 0) system_failed(path_, "cannot be written");
}

// ---- reading -------------------------------------------------------------------------------------------------------

namespace {

// Reads and checks the entry of a tensor. `values` points to the part of the file that holds values, `available` bytes.
// Sets `range` to the tensor's bytes in it.
SafetensorsTensor read_tensor(const std::string& tensor, const Json& entry, const char* values, std::uint64_t available,
                              std::pair<std::uint64_t, std::uint64_t>& range) {
  SafetensorsTensor read{};
  std::vector<std::uint64_t> offsets;
  try {
    if (entry.at("dtype") != "F32") {
      throw std::runtime_error(tensor + " has type " + shown(entry.at("dtype").dump()) + ", not F32");
    }
    // A negative or fractional extent must not pass as a large or a rounded one.
    for (const char* key : {"shape", "data_offsets"}) {
      for (const Json& number : entry.at(key)) {
        if (number.is_number_unsigned()) continue;
        throw std::runtime_error(tensor + " has a shape or offsets that are not a list of whole numbers");
      }
    }
    read.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  } catch (const Json::exception&) {
    throw std::runtime_error(tensor + " lacks its type, shape or offsets");
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > available || offsets[0] % sizeof(float) != 0) {
    throw std::runtime_error(tensor + " would lie outside the file");
  }
  // Checks after each factor, because the product of huge extents would overflow.
  std::uint64_t count = 1;
  const std::uint64_t most = available / sizeof(float);
  for (std::int64_t extent : read.shape) {
    if (extent < 0 || (extent > 0 && count > most / static_cast<std::uint64_t>(extent))) {
      throw std::runtime_error(tensor + " would be larger than the file");
    }
    count *= static_cast<std::uint64_t>(extent);
  }
  if (offsets[1] - offsets[0] != count * sizeof(float)) {
    throw std::runtime_error(tensor + " has a shape that does not match its offsets");
  }
  read.values = reinterpret_cast<const float*>(values + offsets[0]);
  read.count = static_cast<std::int64_t>(count);
  range = {offsets[0], offsets[1]};
  return read;
}

// Parses the header. Rejects duplicate names, which the parser would accept.
Json read_header(std::string_view text) {
  std::vector<std::string> names;
  const auto note_name = [&](int depth, const std::string& name) {
    if (depth == 1) names.push_back(name);
  };
  Json header;
  try {
    header = parse_json(text, note_name);
  } catch (const Json::exception&) {
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string("in its header, ") + error.what());
  }
  if (!header.is_object()) throw std::runtime_error("its header is not a JSON object");
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw std::runtime_error("it has the tensor " + quote(*twice) + " twice");
  return header;
}

}  // namespace

std::map<std::string, SafetensorsTensor> parse_safetensors(std::string_view content) {
  if (content.size() < kPrefix) throw std::runtime_error("it ends before its header");
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), kPrefix);
  if (length > kLongestHeader) throw std::runtime_error("its header would be longer than 100 MB");
  if (length > content.size() - kPrefix) throw std::runtime_error("it ends within its header");
  const std::uint64_t available = content.size() - kPrefix - length;  // for values

  std::map<std::string, SafetensorsTensor> tensors;
  std::map<std::uint64_t, std::uint64_t> ranges;  // begin of a tensor -> its end
  const Json header = read_header(content.substr(kPrefix, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string tensor = "the tensor " + quote(name);
    std::pair<std::uint64_t, std::uint64_t> range;
    const char* values = content.data() + kPrefix + length;
    const SafetensorsTensor& read = tensors[name] = read_tensor(tensor, entry, values, available, range);
    if (length % sizeof(float) != 0) throw std::runtime_error("its values are not aligned");
    if (read.count > 0 && !ranges.insert(range).second)
      throw std::runtime_error(tensor + " starts where another one does");
  }
  std::uint64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end) throw std::runtime_error("its tensors overlap or leave a gap");
    end = last;
  }
  if (end != available) {
    throw std::runtime_error("its tensors end after " + std::to_string(kPrefix + length + end) + " bytes, but it has " +
                             std::to_string(content.size()));
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe would block until a writer opens it.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) system_failed(path, "cannot be read");
  struct stat status {};
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    void* data = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    data_ = data == MAP_FAILED ? nullptr : static_cast<const char*>(data);
  }
  close(file);
  try {
    if (data_ == nullptr) throw std::runtime_error("it is empty or not a regular file");
    tensors_ = parse_safetensors({data_, bytes_});
  } catch (const std::runtime_error& error) {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
    throw std::runtime_error(path_ + " is not an intact safetensors file: " + error.what());
  }
}

SafetensorsFile::~SafetensorsFile() { munmap(const_cast<char*>(data_), bytes_); }

const SafetensorsFile::Tensor& SafetensorsFile::operator[](const std::string& name) const {
  const auto place = tensors_.find(name);
  if (place == tensors_.end()) throw std::runtime_error(path_ + " has no tensor " + quote(name));
  return place->second;
}

std::uint32_t SafetensorsFile::checksum() const { return crc32_of(data_, bytes_); }

}  // namespace workshop
