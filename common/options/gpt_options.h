// SPDX-License-Identifier: Apache-2.0
// The options of the language model and its training, named as those of its PyTorch twin.
#pragma once

#include <string>

namespace workshop {

struct GptOptions {
  std::string text;                // folder with train.txt, valid.txt and test.txt; none: stories
  int words = 500'000;             // of the stories
  int vocabulary = 0;              // words at most, and <unk> for all others; 0: all of the text's
  int context = 16;                // tokens a sample
  int width = 16;                  // numbers a token
  int heads = 4;                   // of the attention; they divide the width
  int blocks = 2;                  // attention and MLP each
  double dropout = 0;              // probability
  std::string recompute = "none";  // what the backward pass computes again instead of keeping it: "blocks", in
                                   // chapter 04 "stages" too, of any model
  double peak_tflops = 0;          // 10¹² operations a second that a rank's device could do; 0: measured
  std::string generate;            // text to go on with at the end, if any
  int tokens = 32;                 // to generate
  double temperature = 1;          // by which logits are divided; 0: the most likely token
};

// How the learning rate and the gradients are scaled from step to step.
struct StepOptions {
  int warmup_steps = 0;
  std::string lr_schedule = "constant";  // or "cosine", after the warm-up
  double clip_norm = 0;                  // largest norm of the gradient; 0: any
};

}  // namespace workshop
