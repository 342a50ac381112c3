// SPDX-License-Identifier: Apache-2.0
// The options of the language model and its training, with the names that its PyTorch counterpart uses.
#pragma once

#include <string>

namespace workshop {

struct GptOptions {
  std::string text;                // folder with train.txt, valid.txt and test.txt; empty: stories
  int words = 500'000;             // of the stories' training stream
  int vocabulary = 0;              // most entries; all other words are <unk>; 0: all words of the text
  int context = 16;                // tokens per sample
  int width = 16;                  // numbers per token
  int heads = 4;                   // of the attention; must divide the width
  int blocks = 2;                  // of attention and MLP
  int attention_block = 0;         // keys whose scores attention computes at a time; 0: all of them
  double dropout = 0;              // probability
  int experts = 0;                 // in place of each block's MLP (chapter 09); 0: none
  int top_k = 2;                   // experts that compute a token
  double aux_loss = 0;             // weight of the auxiliary loss, which balances the experts
  double capacity_factor = 0;      // places at an expert / its fair share of the tokens; 0: as many places as needed
  std::string recompute = "none";  // what the backward pass recomputes instead of keeping it: "blocks", or in
                                   // chapter 04 "stages", for any model
  double peak_tflops = 0;          // peak of a rank's device, in 10¹² operations per second; 0: measured
  std::string generate;            // text to continue after the training, if any
  int tokens = 32;                 // number to generate
  double temperature = 1;          // divides the logits; 0: always the most likely token
};

// The learning-rate schedule and gradient clipping.
struct StepOptions {
  int warmup_steps = 0;
  std::string lr_schedule = "constant";  // after the warm-up; or "cosine"
  double clip_norm = 0;                  // largest norm of the gradient; 0: no limit
};

}  // namespace workshop
