// SPDX-License-Identifier: Apache-2.0
// index.json: what a checkpoint holds and how far the training was. parts.h describes the folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace workshop {

struct CheckpointIndex {
  // Where the elements of a part are: a tensor of a safetensors file.
  struct StoredPart {
    std::string tensor;
    std::int64_t first, rows, columns, stride;  // as TensorPart's
    std::string file, key;
  };
  struct File {
    std::uint64_t bytes = 0;
    std::uint32_t checksum = 0;  // CRC-32
  };

  std::string program;                          // that wrote it
  int ranks = 0;                                // of it
  int step = 0;                                 // optimizer steps made
  int epoch = 0;                                // that is under way
  int samples = 0;                              // of this epoch that all replicas together have seen
  std::string random;                           // state of the generator before this epoch; empty if none is used
  std::map<std::string, std::string> settings;  // options that a run that goes on must share
  std::map<std::string, double> numbers;        // of the program's own
  std::map<std::string, std::vector<int>> tensors;
  std::vector<StoredPart> parts;
  std::map<std::string, File> files;
};

// The text of index.json. It ends with a checksum of its own.
std::string to_text(const CheckpointIndex& index);

// The other way round. Throws std::runtime_error with what is wrong, and lets nothing pass that would have a reader go
// beyond a tensor's elements or find some of them missing.
CheckpointIndex parse_index(const std::string& text);

}  // namespace workshop
