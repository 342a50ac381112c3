// SPDX-License-Identifier: Apache-2.0
// The options of the image classifier: its images, and how to load them.
#pragma once

#include <string>

namespace workshop {

struct ImageOptions {
  std::string folder;  // with CIFAR-10's binary files; empty: the workshop's own images
  int classes = 10;    // number of classes
  int size = 224;      // side in pixels, as the model sees the images
  int shrink = 1;      // divides AlexNet's channels and widths
  int workers = 2;     // threads that prepare batches; 0: the main thread does it
};

}  // namespace workshop
