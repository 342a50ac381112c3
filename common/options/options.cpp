// SPDX-License-Identifier: Apache-2.0
#include "common/options/options.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <sstream>
#include <string_view>

#include "common/base/check.h"
#include "common/base/format.h"
#include "common/base/print.h"
#include "common/base/ranks.h"
#include "common/options/options_parser.h"

namespace workshop {
namespace {

// Indices into the flat arrays of the parameters, of a batch and of the data set are ints.
void require_sizes(const Options& options) {
  const std::vector<int>& layers = options.layers;
  // Leaves room to pad a sharded array to a multiple of the number of ranks.
  constexpr std::int64_t most = std::numeric_limits<int>::max() - (1 << 20);
  std::int64_t parameters = 0;
  for (std::size_t i = 0; i + 1 < layers.size() && parameters <= most; ++i) {
    parameters += (layers[i] + std::int64_t{1}) * layers[i + 1];
  }
  if (parameters > most) usage_error("--layers has 2^31 parameters or more; expected fewer");
  require_product(
      {{"--batch-size", options.batch_size}, {"the widest of --layers", *std::ranges::max_element(layers)}});
  require_product({{"--samples", options.samples},
                   {"the wider of the first and the last of --layers", std::max(layers.front(), layers.back())}});
}

// Values of --model, in the order of ModelKind.
const std::vector<std::string> kModels = {"mlp", "gpt", "alexnet"};

// The course's programs seed their data set but not their model: PyTorch then takes a seed from the operating system,
// so every run starts from different weights. The workshop repeats one recorded run for each way to order the samples,
// with the seed that this run happened to get: in order, shuffled by the DataLoader, and shuffled by the
// DistributedSampler. All programs that order the samples in the same way therefore start from the same weights.
constexpr std::uint64_t kModelSeedInOrder = 1507988244;
constexpr std::uint64_t kModelSeedShuffled = 3787541278;
constexpr std::uint64_t kModelSeedDistributed = 1952748940;

// Ends the job with one line after an uncaught exception, most likely std::bad_alloc.
[[noreturn]] void report_uncaught() {
  try {
    if (const std::exception_ptr current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::bad_alloc&) {
    fail(kFailed, "not enough memory on the host");
  } catch (const std::exception& error) {
    fail(kFailed, "%s", error.what());
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void require_product(const std::vector<std::pair<std::string, std::int64_t>>& factors, std::int64_t at_most) {
  std::string names;
  bool fits = true;
  std::int64_t product = 1;
  for (const auto& [name, factor] : factors) {
    names += (names.empty() ? "" : " times ") + name;
    fits = fits && factor <= at_most / product;
    if (fits) product *= factor;
  }
  if (!fits) usage_error("%s is more than %" PRId64 "; expected less", names.c_str(), at_most);
}

Options::Options(std::string program, std::string description, Sampling sampling)
    : program_(std::move(program)), sampling_(sampling), impl_(std::make_unique<Impl>()) {
  std::set_terminate(report_uncaught);
  CLI::App& app = impl_->app;
  app.description(std::move(description));
  app.name(program_);

  const auto read_layers = [this](const std::string& text) {
    const std::string accepted = "two or more widths of at least 1 with commas between, such as 6,4,2";
    std::vector<int> widths;
    std::istringstream stream(text);
    for (std::string word; std::getline(stream, word, ',');) {
      if (!read_number(word, widths.emplace_back()) || widths.back() < 1) return accepted;
    }
    if (widths.size() < 2 || text.back() == ',') return accepted;
    layers = widths;
    return std::string();
  };
  Impl& i = *impl_;
  i.training.push_back(
      i.add("--layers", "widths of the layers: input,hidden…,output", "N,N,…", read_layers)->default_str("6,4,2"));
  i.write("--layers", layers);
  i.train("--activation", activation, "activation between the layers", {"none", "relu", "gelu"});
  i.train("--optimizer", optimizer, "update rule", {"sgd", "adamw"});
  i.train("--lr", lr, "learning rate", 0.0);
  i.train("--weight-decay", weight_decay, "default: 0 for sgd, 0.01 for adamw", 0.0);
  i.training.back()->default_str("");
  i.train("--samples", samples, "samples in the data set", 1);
  i.train("--batch-size", batch_size, "samples per rank and (micro-)batch", 1);
  i.train("--epochs", epochs, "passes over the data set", 1);
  i.train("--max-steps", max_steps, "stop after this many steps; 0: no limit", 0);
  i.training.push_back(
      app.add_flag("--shuffle,!--no-shuffle", shuffle, "a new order of the samples every epoch (default: on)"));
  i.write("--shuffle", shuffle);
  i.train("--seed", seed, "seed of the data set", std::uint64_t{0});
  i.train("--model-seed", model_seed, "seed of the initial parameters; default: the seed of the course's run",
          std::uint64_t{0});
  i.model_seed = i.training.back()->default_str("");
  i.train("--log-every", log_every, "steps between printed losses; 0: only the last loss of each epoch", 0);
  i.training.push_back(app.add_flag("--verbose", verbose, "print the batch size and steps of every rank and epoch"));

  i.add_path("--record", record, "write the run record (JSON Lines)", "FILE", "a file to write");
  i.add_path("--timeline", timeline, "write the timeline (open it in ui.perfetto.dev)", "FILE", "a file to write");
}

Options::~Options() = default;

void Options::with_checkpoints(const std::string& format) {
  impl_->add_path("--checkpoints", checkpoints, "save checkpoints to this folder", "FOLDER", "a folder to write to");
  impl_->add_path("--resume", resume, "resume from this checkpoint, or from the newest one in this folder", "FOLDER",
                  "a folder to read");
  add("--save-every", save_every, "steps between checkpoints; 0: one at the end", 0);
  add("--keep", keep, "number of newest checkpoints to keep; 0: all", 0);
  add("--check-replicas", check_replicas, "steps between checks that replicas have the same bits; 0: none", 0);
  checkpoint_format = format;
  add("--checkpoint-format", checkpoint_format, "one file, gathered on rank 0, or one per rank", {"full", "sharded"});
}

void Options::with_async_checkpoints() {
  add("--checkpoint-mode", checkpoint_mode, "async: write a file per rank beside the training", {"sync", "async"});
}

void Options::with_global_batch() {
  add("--global-batch", global_batch, "samples per step of all ranks together, instead of --batch-size", 1);
}

void Options::with_accumulation() {
  add("--accumulation-steps", accumulation_steps, "batches per rank before each update", 1);
}

void Options::with_validation() {
  validates_ = true;
  add("--validation-samples", validation_samples, "last samples of the data set, held out for validation", 0);
}

void Options::with_models(const std::vector<std::string>& recompute) {
  impl_->train("--model", model, "model to train: an MLP, a language model, or AlexNet", kModels);
  impl_->only_for("mlp", {"--layers", "--activation"});
  impl_->only_for("mlp or alexnet", {"--samples"});
  add_gpt_options(recompute);
  add_image_options();
}

// Ends the program if an option of another model is given. Leaves such options out of the record, and sets the defaults
// of the chosen model.
void Options::use_model() {
  const std::string& name = model_name();
  impl_->only_for("mlp or alexnet", {"--validation-samples"});
  for (const auto& [option, models] : impl_->of_models) {
    if ((" " + models + " ").find(" " + name + " ") != std::string::npos) continue;
    if (option->count() > 0) usage_error("%s is for --model %s only", option->get_name().c_str(), models.c_str());
    impl_->left_out.push_back(option->get_name().substr(2));
  }
  if (model != ModelKind::gpt && gpt.recompute == "blocks") {
    usage_error("--recompute is 'blocks'; expected another value: %s has no blocks",
                model == ModelKind::mlp ? "an MLP" : "AlexNet");
  }
  if (model == ModelKind::gpt) use_gpt();
  if (model == ModelKind::alexnet) use_alexnet();
}

namespace {

// Every program is built once per precision, as PROGRAM and PROGRAM_bf16 in the same folder.
constexpr std::string_view kSuffix = "_bf16";

std::string this_program() {
  std::error_code missing;  // in a container without /proc
  const std::filesystem::path file = std::filesystem::read_symlink("/proc/self/exe", missing);
  return missing ? program_invocation_name : file.string();
}

// Replaces this process by the same program built for the other precision.
void become(const std::string& program, char** argv) {
  execv(program.c_str(), argv);
  usage_error("--precision needs the program %s, which cannot be started; build it", program.c_str());
}

}  // namespace

void Options::with_precision() {
  precision_ = this_program().ends_with(kSuffix) ? "bf16" : "fp32";
  add("--precision", precision_, "precision of weights, activations and their gradients", {"fp32", "bf16"});
}

void Options::without_training() {
  for (CLI::Option* option : impl_->training) impl_->app.remove_option(option);
  impl_->training.clear();
  impl_->writers.clear();
  impl_->model_seed = nullptr;
}

void Options::without(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    CLI::Option* option = impl_->app.get_option(name);
    std::erase(impl_->training, option);
    std::erase_if(impl_->of_models, [=](const auto& of) { return of.first == option; });
    if (impl_->model_seed == option) impl_->model_seed = nullptr;
    impl_->app.remove_option(option);
    impl_->left_out.push_back(name.substr(2));
  }
}

void Options::add(const std::string& name, int& value, const std::string& help, int at_least, int at_most) {
  const bool range = at_most < kMostInt;
  const std::string accepted = range ? formatted("a whole number from %d to %d", at_least, at_most)
                                     : formatted("a whole number of at least %d", at_least);
  impl_->add_number<int>(
      name, value, help, accepted, [=](int x) { return x >= at_least && !(range && x > at_most); }, at_most);
}

void Options::add(const std::string& name, double& value, const std::string& help, double greater_than,
                  double at_most) {
  impl_->add_number<double>(
      name, value, help, "a number greater than " + shown(greater_than), [=](double x) { return x > greater_than; },
      at_most);
}

void Options::add(const std::string& name, std::string& value, const std::string& help,
                  const std::vector<std::string>& choices) {
  impl_->write(name, value);
  if (!choices.empty()) {
    impl_->add_choice(name, help, choices, value, [&value, choices](std::size_t place) { value = choices[place]; });
    return;
  }
  const auto read = [&value](const std::string& text) { return value = text, std::string(); };
  impl_->add(name, help, "TEXT", read)->default_str(value);
}

void Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  impl_->write(name.substr(0, name.find(',')), value);
  impl_->app.add_flag(name, value, help);
}

void Options::parse(int argc, char** argv) {
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print0("%s", impl_->app.help().c_str());
    std::exit(0);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string message = error.what(), name = message.substr(0, message.find(':'));  // "--lr: 1 required …"
    const auto read = impl_->readers.find(name);
    const std::string accepted = read == impl_->readers.end() ? "" : read->second("");
    usage_error("%s lacks its value%s%s", name.c_str(), accepted.empty() ? "" : "; expected ", accepted.c_str());
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> left = impl_->app.remaining();  // in unspecified order
    const auto option = std::ranges::find_if(left, [](const std::string& word) { return word.starts_with('-'); });
    usage_error("there is no option '%s'; --help lists all options",
                (option == left.end() ? left.front() : *option).c_str());
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    usage_error("%s (--help lists what is accepted)", message.c_str());
  }
  if (const std::string program = this_program(); !precision_.empty()) {
    const bool is_bf16 = program.ends_with(kSuffix);
    if (precision_ == "bf16" && !is_bf16) become(program + std::string(kSuffix), argv);
    if (precision_ == "fp32" && is_bf16) become(program.substr(0, program.size() - kSuffix.size()), argv);
  }
  if (one_rank_ && process_ranks().world > 1) {
    usage_error("%s trains on one GPU; it was started on %d ranks", program_.substr(program_.find('/') + 1).c_str(),
                process_ranks().world);
  }
  if (impl_->model_seed != nullptr && impl_->model_seed->count() == 0) {
    const bool distributed = sampling_ == Sampling::distributed;
    model_seed = !shuffle ? kModelSeedInOrder : distributed ? kModelSeedDistributed : kModelSeedShuffled;
  }
  if (global_batch > 0 && impl_->given("--batch-size"))
    usage_error("--global-batch sets the size of a rank's batch: leave out --batch-size");
  use_model();
  if (global_batch > 0) divide_global_batch();
  const auto has = [&](const char* name) { return std::ranges::find(impl_->left_out, name) == impl_->left_out.end(); };
  if (has("layers") && has("batch-size")) require_sizes(*this);
  if (save_every > 0 && checkpoints.empty()) usage_error("--save-every needs a folder to save to: --checkpoints");
  if (images.folder.empty() && validation_samples >= samples) {
    usage_error("--validation-samples is '%d'; expected fewer than the %d of --samples", validation_samples, samples);
  }
  if (weight_decay < 0) weight_decay = optimizer == OptimizerKind::adamw ? 0.01 : 0.0;
}

// The number of ranks may change when a run goes on, but not the samples of a step.
void Options::divide_global_batch() {
  const int ranks = process_ranks().world, batches = ranks * accumulation_steps;
  if (global_batch % batches != 0) {
    usage_error("--global-batch is '%d'; expected a multiple of %d, for %d ranks with %d batches per step",
                global_batch, batches, ranks, accumulation_steps);
  }
  batch_size = global_batch / batches;
}

std::string Options::layers_text() const {
  std::string text;
  for (int width : layers) text += (text.empty() ? "" : ",") + std::to_string(width);
  return text;
}

const std::string& Options::model_name() const { return kModels[static_cast<std::size_t>(model)]; }

std::string Options::json() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& write : impl_->writers) write(json);
  for (const std::string& name : impl_->left_out) json.erase(name);
  return json.dump();
}

}  // namespace workshop
