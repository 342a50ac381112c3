// SPDX-License-Identifier: Apache-2.0
// Where the samples of a training come from.
#pragma once

#include <memory>

namespace workshop {

struct ImageDataset;
struct TokenDataset;

// What a model is trained on: random tensors with so many floats a sample, a text, or images.
struct DataSource {
  int in, out;
  std::shared_ptr<TokenDataset> text = nullptr;  // whose tokens are gone once they are on the device
  double operations = 0;                         // of the model's matrix products for a token of the text, a step's
  double best_test_loss = 0;                     // that any model can reach on the text; 0: unknown
  std::shared_ptr<const ImageDataset> images = nullptr;
  bool needs_x = true;  // false: of images only the targets are prepared, for a rank without the model's first layer
};

}  // namespace workshop
