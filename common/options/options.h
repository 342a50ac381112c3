// SPDX-License-Identifier: Apache-2.0
// Command-line options: those that all chapters share, and a chapter's own, which it adds with add(). A bad value ends
// every rank with status 2 and one line with the option, the value, and the accepted values.
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
enum class Activation { none, relu, gelu };  // gelu: the exact one, with erf
enum class OptimizerKind { sgd, adamw };

enum class Sampling { data_loader, distributed };  // PyTorch's DataLoader without or with a DistributedSampler

class Options {
 public:
  // `program`: chapter and program as in the run record, such as "02_ddp/ddp".
  Options(std::string program, std::string description, Sampling sampling = Sampling::data_loader);
  ~Options();
  Options(const Options&) = delete;  // the parser points into this object
  Options& operator=(const Options&) = delete;

  // The options of every training program, with the defaults of the PyTorch programs.
  std::vector<int> layers = {6, 4, 2};  // widths: input, hidden …, output
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  double lr = 0.01;
  double weight_decay = -1;  // after parse(): as given, or PyTorch's default (0 for SGD, 0.01 for AdamW)
  int samples = 1024;
  int batch_size = 32;   // samples per rank and (micro-)batch
  int global_batch = 0;  // samples per step of all ranks together, which sets batch_size; 0: not given
  int epochs = 1;
  int max_steps = 0;           // stop after this many optimizer steps; 0: no limit
  int accumulation_steps = 1;  // batches per optimizer step; needs with_accumulation()
  int devices = 0;             // that the process uses; 0 in programs that use one per rank
  int validation_samples = 0;  // not trained on; needs with_validation()
  bool shuffle = true;
  std::uint64_t seed = 12345;    // of the data set
  std::uint64_t model_seed = 0;  // of the initial weights; after parse(): as given, or one of kModelSeed…
  int log_every = 8;             // steps between printed losses; 0: only the last loss of each epoch
  bool verbose = false;          // every rank prints its batch size and steps when an epoch starts
  std::string record;            // file to write the run record to, if any
  std::string timeline;          // file to write the timeline to, if any
  ModelKind model = ModelKind::mlp;
  GptOptions gpt;         // of the language model; needs with_gpt() or with_models()
  ImageOptions images;    // of the image classifier; needs with_models()
  StepOptions step_size;  // of every model; needs with_gpt() or with_models()

  // Checkpoints; need with_checkpoints().
  std::string checkpoints;               // folder to save to, if any
  std::string resume;                    // checkpoint to resume from, or a folder of checkpoints
  std::string checkpoint_format;         // "full" or "sharded"
  std::string checkpoint_mode = "sync";  // "async": written beside the training
  int save_every = 0;                    // steps between checkpoints; 0: one at the end
  int keep = 3;                          // checkpoints to keep; 0: all
  int check_replicas = 0;                // steps between two comparisons of the replicas' bits; 0: none

  // with_checkpoints() adds the checkpoint options; `format` is the default of --checkpoint-format. Call also
  // with_async_checkpoints() if nothing but updates changes what is saved, and Training::lr_factor() is called before
  // each update. Call before parse().
  void with_checkpoints(const std::string& format);
  void with_async_checkpoints();

  // Adds --global-batch, for programs in which each rank is a replica. Call before parse().
  void with_global_batch();

  // Add --accumulation-steps, --validation-samples, and --precision (chapter 01's precision.h). Call before parse().
  void with_accumulation();
  void with_validation();
  void with_precision();
  bool validates() const { return validates_; }
  bool is_mixed_precision() const { return precision_ == "bf16"; }
  // Whether to compute the norm of the gradient: for clipping, and always for a language model.
  bool needs_norm() const { return model == ModelKind::gpt || step_size.clip_norm > 0; }

  // with_gpt() is for programs that train the language model and generate text with it; with_models() adds --model.
  // Each adds the options of its models and of the step size. A model's own defaults apply only if that model is
  // trained. `recompute`: the values that --recompute accepts. Call before parse().
  void with_gpt();
  void with_models(const std::vector<std::string>& recompute = {"none", "blocks"});

  void for_one_rank() { one_rank_ = true; }  // for programs that run as one process

  void without_training();  // removes the training options, for programs without training; before parse()

  // Removes shared options that mean nothing in this program, such as "--layers". Call before parse().
  void without(const std::vector<std::string>& names);

  // Removes the options of mixtures of experts (chapter 09), for programs that cut layers or sequences but cannot cut
  // mixtures. Call before parse().
  void without_experts() { without({"--experts", "--top-k", "--aux-loss", "--capacity-factor"}); }

  // Add a chapter's own option. `value` holds the default. `at_least` and `at_most` are inclusive.
  void add(const std::string& name, int& value, const std::string& help, int at_least, int at_most = 1 << 30);
  void add(const std::string& name, double& value, const std::string& help, double greater_than, double at_most = 1e15);
  void add(const std::string& name, std::string& value, const std::string& help,
           const std::vector<std::string>& choices);
  void add_flag(const std::string& name, bool& value, const std::string& help);

  // Reads the command line; ends the program on --help (status 0) and on a bad value (status 2).
  void parse(int argc, char** argv);

  const std::string& program() const { return program_; }
  const std::string& model_name() const;  // as --model calls it
  Sampling sampling() const { return sampling_; }
  std::string layers_text() const;  // "6,4,2"
  std::string json() const;         // all options and their values, for the run record; call after parse()

 private:
  struct Impl;
  void add_gpt_options(const std::vector<std::string>& recompute);
  void add_image_options();
  void divide_global_batch();
  void use_model();
  void use_gpt();
  void use_alexnet();
  std::string program_, precision_;  // precision_: needs with_precision()
  Sampling sampling_;
  bool validates_ = false, one_rank_ = false;
  std::unique_ptr<Impl> impl_;
};

// Ends the program with status 2 if the product of these positive numbers is larger than `at_most`. The default is for
// array indices, which are ints.
void require_product(const std::vector<std::pair<std::string, std::int64_t>>& factors,
                     std::int64_t at_most = std::numeric_limits<int>::max());

}  // namespace workshop
