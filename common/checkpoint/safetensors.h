// SPDX-License-Identifier: Apache-2.0
// Files of float32 tensors in the safetensors format (https://github.com/huggingface/safetensors), which PyTorch, JAX
// and others read. A file consists of the length of the header (eight bytes), the header and the values. The header is
// JSON and gives each tensor's type, shape and offsets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace workshop {

inline constexpr std::uint64_t kLongestHeader = 100'000'000;  // in bytes

// Returns the number of elements of a tensor of this shape.
template <typename Extent>
std::int64_t elements(const std::vector<Extent>& shape) {
  std::int64_t count = 1;
  for (Extent extent : shape) count *= extent;
  return count;
}

// A tensor's name and its shape.
using NamedShape = std::pair<std::string, std::vector<std::int64_t>>;

// Writes a file from beginning to end, so that tensors need not be in memory at the same time. All members throw
// std::runtime_error "FILE: what went wrong".
class SafetensorsWriter {
 public:
  // `tensors`: in the order in which their values will be written. Replaces an existing file.
  SafetensorsWriter(const std::string& path, const std::vector<NamedShape>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes the next `count` values, of one or several tensors.
  void write(const float* values, std::size_t count) { append(values, count * sizeof(float)); }
  // Call this after writing all values. Returns when the file is on disk.
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

// Returns the tensors of a file with this content. Safe for any content: checks the whole structure, and throws
// std::runtime_error that says what is wrong. Does not access the values.
std::map<std::string, SafetensorsTensor> parse_safetensors(std::string_view content);

// A file for reading, mapped into memory. The constructor throws std::runtime_error "FILE: what is wrong". It does not
// accept links, pipes or devices.
class SafetensorsFile {
 public:
  using Tensor = SafetensorsTensor;

  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // Returns the tensor with this name; throws if the file does not contain it.
  const Tensor& operator[](const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t checksum() const;  // CRC-32 of the whole file; reads all of it

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace workshop
