// SPDX-License-Identifier: Apache-2.0
// Files of float32 tensors in the safetensors format (https://github.com/huggingface/safetensors): eight bytes with the
// length of a header, the header in JSON, which gives each tensor's type, shape and place, and then the values.
// PyTorch, JAX and others read them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace workshop {

inline constexpr std::uint64_t kLongestHeader = 100'000'000;  // of a safetensors file, in bytes

// Of a tensor of this shape.
template <typename Extent>
std::int64_t elements(const std::vector<Extent>& shape) {
  std::int64_t count = 1;
  for (Extent extent : shape) count *= extent;
  return count;
}

// A tensor's name and its shape.
using NamedShape = std::pair<std::string, std::vector<std::int64_t>>;

// Writes a file from its beginning to its end, so that no tensor has to be in memory with another. All members throw
// std::runtime_error "FILE: what went wrong".
class SafetensorsWriter {
 public:
  // `tensors` in the order in which their values will come. An existing file is replaced.
  SafetensorsWriter(const std::string& path, const std::vector<NamedShape>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next values, of one tensor or of several.
  void write(const float* values, std::size_t count) { append(values, count * sizeof(float)); }
  // Call when all values are written: returns when the file is on the disk.
  void finish();

  std::uint64_t bytes() const { return bytes_; }        // written so far
  std::uint32_t checksum() const { return checksum_; }  // CRC-32 of them

 private:
  void append(const void* data, std::size_t size);

  std::string path_;
  std::FILE* file_;
  std::uint64_t expected_ = 0, bytes_ = 0;
  std::uint32_t checksum_ = 0;
};

struct SafetensorsTensor {
  std::vector<std::int64_t> shape;
  const float* values;
  std::int64_t count;
};

// The tensors of a file with this content, whose values it does not touch. Checks all of the structure, whatever the
// content may be, and throws std::runtime_error with what is wrong.
std::map<std::string, SafetensorsTensor> parse_safetensors(std::string_view content);

// A file to read, mapped into memory. The constructor throws std::runtime_error "FILE: what is wrong". A link, a pipe
// or a device is no such file.
class SafetensorsFile {
 public:
  using Tensor = SafetensorsTensor;

  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // The tensor of this name; throws if there is none.
  const Tensor& operator[](const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t checksum() const;  // CRC-32 of the whole file, which is read for it

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace workshop
