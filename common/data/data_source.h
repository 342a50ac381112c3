// SPDX-License-Identifier: Apache-2.0
// Where the samples of a training run come from.
#pragma once

#include <memory>

namespace workshop {

struct ImageDataset;
struct TokenDataset;

// The data that a model is trained on: a text, images, or else random tensors with `in` and `out` floats per sample.
struct DataSource {
  int in, out;
  std::shared_ptr<TokenDataset> text = nullptr;  // its tokens are freed once they are on the device
  double operations = 0;                         // of the model's matrix products, per token and training step
  double best_test_loss = 0;                     // the lowest that any model can reach on the text; 0: unknown
  std::shared_ptr<const ImageDataset> images = nullptr;
  bool needs_x = true;  // false: prepare only the targets of images, for a rank without the model's first layer
};

}  // namespace workshop
