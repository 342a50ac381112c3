// SPDX-License-Identifier: Apache-2.0
// The options of the image classifier: its images, and how they are loaded.
#pragma once

#include <string>

namespace workshop {

struct ImageOptions {
  std::string folder;  // with CIFAR-10's binary files; none: images of the workshop's own
  int classes = 10;    // to tell apart
  int size = 224;      // pixels a side, as the model sees them
  int shrink = 1;      // AlexNet's widths are divided by it
  int workers = 2;     // threads that prepare batches; 0: the program's own
};

}  // namespace workshop
