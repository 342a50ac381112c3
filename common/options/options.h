// SPDX-License-Identifier: Apache-2.0
// Command line options. The shared ones are the same in every chapter; a chapter adds its own with add().
// A bad value ends every rank with status 2 and one line: the option, the value, and what would be accepted.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/options/gpt_options.h"
#include "common/options/image_options.h"

namespace workshop {

enum class ModelKind { mlp, gpt, alexnet };
enum class Activation { none, relu, gelu };  // gelu is the exact one, with erf
enum class OptimizerKind { sgd, adamw };

enum class Sampling { data_loader, distributed };  // PyTorch's DataLoader alone, or with a DistributedSampler

class Options {
 public:
  // `program` is "02_ddp/ddp": the chapter and the program, as the run record names it.
  Options(std::string program, std::string description, Sampling sampling = Sampling::data_loader);
  ~Options();
  Options(const Options&) = delete;  // the parser points into it
  Options& operator=(const Options&) = delete;

  // The options of every training program, with the defaults of the PyTorch programs.
  std::vector<int> layers = {6, 4, 2};  // widths: input, hidden …, output
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  double lr = 0.01;
  double weight_decay = -1;  // after parse(): what was given, else PyTorch's default (0 for SGD, 0.01 for AdamW)
  int samples = 1024;
  int batch_size = 32;  // samples a rank and micro-batch
  int epochs = 1;
  int max_steps = 0;           // stop after so many optimizer steps; 0: no limit
  int accumulation_steps = 1;  // batches of a step: in programs that call with_accumulation()
  int devices = 0;             // that the process uses, in a program that takes several; else a rank has one
  int validation_samples = 0;  // not trained on: in programs that call with_validation()
  bool shuffle = true;
  std::uint64_t seed = 12345;    // of the data set
  std::uint64_t model_seed = 0;  // of the initial weights; after parse(): what was given, else one of kModelSeed…
  int log_every = 8;             // steps between printed losses; 0 prints the end of each epoch alone
  bool verbose = false;          // every rank says at the start of an epoch what is before it
  std::string record;            // file to write the run record to, if any
  std::string timeline;          // file to write the timeline to, if any
  ModelKind model = ModelKind::mlp;
  GptOptions gpt;         // of the language model: in programs that call with_gpt() or with_models()
  ImageOptions images;    // of the image classifier: in programs that call with_models()
  StepOptions step_size;  // likewise, for every model

  // Where checkpoints go and come from: in programs that call with_checkpoints().
  std::string checkpoints;        // folder to save to, if any
  std::string resume;             // checkpoint to go on from, or a folder of such
  std::string checkpoint_format;  // "full" or "sharded"
  int save_every = 0;             // steps between checkpoints; 0: one at the end
  int keep = 3;                   // checkpoints to keep; 0: all

  // Adds the options of checkpoints. `format` is the default of --checkpoint-format. Call before parse().
  void with_checkpoints(const std::string& format);

  // Add --accumulation-steps, --validation-samples, and --precision (chapter 01's precision.h). Call before parse().
  void with_accumulation();
  void with_validation();
  void with_precision();
  bool validates() const { return validates_; }
  // Whether the norm of the gradient is computed: to clip by it, and always for a language model.
  bool needs_norm() const { return model == ModelKind::gpt || step_size.clip_norm > 0; }

  // Has the program train the language model and let it write, or the model that --model names. Adds the options of the
  // models, whose defaults apply where they are trained, and those of the step size. `recompute`: what --recompute may
  // be. Call before parse().
  void with_gpt();
  void with_models(const std::vector<std::string>& recompute = {"none", "blocks"});

  void for_one_rank() { one_rank_ = true; }  // for programs that are one process

  void without_training();  // leaves the training options out: for programs that train nothing; before parse()

  // Leaves single shared options out, such as "--layers", where they mean nothing. Call before parse().
  void without(const std::vector<std::string>& names);

  // A chapter's own options; `value` holds the default. Bounds are inclusive.
  void add(const std::string& name, int& value, const std::string& help, int at_least, int at_most = 1 << 30);
  void add(const std::string& name, double& value, const std::string& help, double greater_than, double at_most = 1e15);
  void add(const std::string& name, std::string& value, const std::string& help,
           const std::vector<std::string>& choices);
  void add_flag(const std::string& name, bool& value, const std::string& help);

  // Reads the command line; ends the program on --help (status 0) and on a bad value (status 2).
  void parse(int argc, char** argv);

  const std::string& program() const { return program_; }
  Sampling sampling() const { return sampling_; }
  std::string layers_text() const;  // "6,4,2"
  std::string json() const;         // every option and its value after parse(), for the run record

 private:
  struct Impl;
  void add_gpt_options(const std::vector<std::string>& recompute);
  void add_image_options();
  void use_model();
  void use_gpt();
  void use_alexnet();
  std::string program_, precision_;  // precision_: in programs that call with_precision()
  Sampling sampling_;
  bool validates_ = false, one_rank_ = false;
  std::unique_ptr<Impl> impl_;
};

// Ends the program with status 2 where the product of these positive numbers is larger: positions in arrays are ints.
void require_product(const std::vector<std::pair<std::string, std::int64_t>>& factors,
                     std::int64_t at_most = std::numeric_limits<int>::max());

}  // namespace workshop
