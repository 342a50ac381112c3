// SPDX-License-Identifier: Apache-2.0
// The options of the language model and their defaults.
#include "common/options/options.h"
#include "common/options/options_parser.h"

namespace workshop {
namespace {

// Defaults for the language model: for a text of the user's, and for the workshop's stories. On the stories, the model
// is large enough, and trained for long enough, to get within a few percent of the best possible perplexity.
struct GptDefault {
  const char *option, *text, *on_stories;
};
constexpr GptDefault kGptDefaults[] = {{"--optimizer", "adamw", "adamw"},
                                       {"--lr", "0.001", "0.004"},
                                       {"--lr-schedule", "constant", "cosine"},
                                       {"--epochs", "1", "3"},
                                       {"--batch-size", "8", "16"},
                                       {"--context", "16", "32"},
                                       {"--width", "16", "64"},
                                       {"--model-seed", "4321", "4321"}};

// "a", or "a; on stories: b".
std::string either(const GptDefault& value) {
  const std::string text = value.text, on_stories = value.on_stories;
  return text == on_stories ? text : text + "; on stories: " + on_stories;
}

}  // namespace

void Options::with_gpt() {
  model = ModelKind::gpt;
  without({"--layers", "--activation", "--samples"});
  add_gpt_options({"none", "blocks"});
  with_accumulation();
  add("--generate", gpt.generate, "text to continue after the training", {});
  add("--tokens", gpt.tokens, "words to generate", 1);
  impl_->add_number<double>("--temperature", gpt.temperature, "divides the logits; 0: always the most likely word",
                            "a number of at least 0", at_least_0, kMostDouble);
  for (const GptDefault& value : kGptDefaults) impl_->app.get_option(value.option)->default_str(either(value));
}

void Options::add_gpt_options(const std::vector<std::string>& recompute) {
  const std::string folder = "folder with train.txt, valid.txt and test.txt";
  impl_->add_path("--text", gpt.text, folder.c_str(), "FOLDER", "a folder to read");
  add("--words", gpt.words, "words of the generated stories to train on if there is no --text", 1, 2'000'000);
  add("--vocabulary", gpt.vocabulary, "number of words to tell apart, all others are <unk>; 0: all", 0);
  add("--context", gpt.context, "tokens per sample", 1);
  add("--width", gpt.width, "width of the model: numbers per token", 1);
  add("--heads", gpt.heads, "attention heads; must divide the width", 1);
  add("--blocks", gpt.blocks, "blocks of attention and MLP", 1, 1 << 10);
  add("--attention-block", gpt.attention_block, "keys whose scores attention computes at a time; 0: all", 0);
  add("--experts", gpt.experts, "experts in place of each block's MLP; 0: none", 0, 1 << 12);
  add("--top-k", gpt.top_k, "experts that compute a token", 1, 1 << 12);
  impl_->add_number<double>("--aux-loss", gpt.aux_loss, "weight of the loss that balances the experts",
                            "a number of at least 0", at_least_0, kMostDouble);
  impl_->add_number<double>("--capacity-factor", gpt.capacity_factor,
                            "places of a sequence at an expert, by its fair share of them; 0: no limit",
                            "a number of at least 0", at_least_0, kMostDouble);
  const auto probability = [](double x) { return x >= 0 && x < 1; };
  impl_->add_number<double>("--dropout", gpt.dropout, "probability that a value is dropped",
                            "a number of at least 0 and less than 1", probability, 1);
  add("--peak-tflops", gpt.peak_tflops, "peak of a rank's device, for its utilization; default: measured", 0.0);
  impl_->app.get_option("--peak-tflops")->default_str("");
  impl_->only_for(
      "gpt", {"--text", "--words", "--vocabulary", "--context", "--width", "--heads", "--blocks", "--attention-block",
              "--experts", "--top-k", "--aux-loss", "--capacity-factor", "--peak-tflops"});
  impl_->only_for("gpt or alexnet", {"--dropout"});

  add("--recompute", gpt.recompute, "what the backward pass recomputes instead of keeping it", recompute);
  add("--warmup-steps", step_size.warmup_steps, "steps over which the learning rate rises to --lr", 0);
  add("--lr-schedule", step_size.lr_schedule, "after the warm-up; cosine falls to a tenth", {"constant", "cosine"});
  impl_->add_number<double>("--clip-norm", step_size.clip_norm, "largest norm of the gradient; 0: no limit",
                            "a number of at least 0", at_least_0, kMostDouble);
  for (const GptDefault& value : kGptDefaults) impl_->show_default(value.option, "gpt", either(value));
}

void Options::use_gpt() {
  for (const GptDefault& value : kGptDefaults) {
    impl_->set_default(value.option, gpt.text.empty() ? value.on_stories : value.text);
  }
  if (gpt.width % gpt.heads != 0) {
    usage_error("--width is '%d'; expected a multiple of the %d of --heads", gpt.width, gpt.heads);
  }
  if (gpt.experts > 0 && gpt.top_k > gpt.experts) {
    usage_error("--top-k is '%d'; expected at most the %d of --experts", gpt.top_k, gpt.experts);
  }
}

}  // namespace workshop
