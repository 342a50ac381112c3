// SPDX-License-Identifier: Apache-2.0
// index.json: the contents of a checkpoint and the progress of the training. checkpoints.h describes the folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace workshop {

struct CheckpointIndex {
  // Where the elements of a part are stored: in the tensor `key` of a safetensors file.
  struct StoredPart {
    std::string tensor;
    std::int64_t first, rows, columns, stride;  // as in TensorPart
    std::string file, key;
  };
  struct File {
    std::uint64_t bytes = 0;
    std::uint32_t checksum = 0;  // CRC-32
  };

  std::string program;                          // the program that saved the checkpoint
  int ranks = 0;                                // number of its ranks
  int step = 0;                                 // optimizer steps made
  int epoch = 0;                                // the current epoch
  int samples = 0;                              // samples of this epoch that all replicas together have processed
  std::string random;                           // state of the generator before this epoch; empty if none is used
  std::map<std::string, std::string> settings;  // options that must be the same in a run that resumes
  std::map<std::string, double> numbers;        // that the program wants restored
  std::map<std::string, std::vector<int>> tensors;
  std::vector<StoredPart> parts;
  std::map<std::string, File> files;
};

// Returns the text of index.json, which contains a checksum of itself.
std::string to_text(const CheckpointIndex& index);

// Converts the text of index.json back. Throws std::runtime_error that says what is wrong. Rejects every index that
// would make a reader read past the end of a tensor or miss some of its elements.
CheckpointIndex parse_index(const std::string& text);

}  // namespace workshop
