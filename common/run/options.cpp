// SPDX-License-Identifier: Apache-2.0
#include "common/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/check.h"
#include "common/job.h"
#include "common/run/text.h"

namespace workshop {
namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : separator) + word;
  return joined;
}

// Reads a whole text as a number; false if it is not one or does not fit.
template <typename T>
bool read_number(const std::string& text, T& value) {
  if (std::is_unsigned_v<T> && text.find('-') != std::string::npos) return false;
  std::istringstream stream(text);
  return (stream >> value) && stream.peek() == std::istringstream::traits_type::eof();
}

template <typename T>
std::string shown(T number) {
  std::ostringstream stream;
  stream << number;
  return stream.str();
}

const auto at_least_0 = [](double x) { return x >= 0; };
constexpr double kMostDouble = std::numeric_limits<double>::max();
constexpr int kMostInt = 1 << 30;  // of an option, so that the sum of two is an int

// Positions in the flat arrays of parameters, of a batch, and of the data set are ints.
void require_sizes(const Options& options) {
  const std::vector<int>& layers = options.layers;
  // Room to pad what the ranks share to a multiple of their number.
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

// What nothing catches, first of all memory that is not there, ends the job with one line.
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

struct Options::Impl {
  // One function an option that reads its text: "" or what would be accepted.
  using Read = std::function<std::string(const std::string&)>;

  CLI::App app;
  CLI::Option* model_seed = nullptr;
  std::vector<std::function<void(nlohmann::json&)>> writers;  // each adds one option and its value
  std::vector<CLI::Option*> training;
  std::vector<CLI::Option*> of_gpt;   // options that only the language model has
  std::vector<std::string> left_out;  // names of options that this program, or its model, does without

  // Texts are checked here and not by CLI11's conversions, which take 010 for 8 and do not say what they would accept.
  CLI::Option* add(const std::string& name, const std::string& help, const std::string& type, const Read& read) {
    CLI::callback_t callback = [name, read](const CLI::results_t& texts) {
      const std::string accepted = read(texts.back());
      if (!accepted.empty()) {
        usage_error("%s is '%s'; expected %s", name.c_str(), texts.back().c_str(), accepted.c_str());
      }
      return true;
    };
    return app.add_option(name, callback, help)->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  // A number that `accepts` takes, which `accepted` says, and that is at most `most`.
  template <typename T>
  CLI::Option* add_number(const std::string& name, T& value, const std::string& help, const std::string& accepted,
                          std::function<bool(T)> accepts, T most) {
    write(name, value);
    const auto read = [&value, accepted, accepts, most](const std::string& text) {
      T number{};
      if (!read_number(text, number) || !accepts(number)) return accepted;
      if (number > most) return "at most " + shown(most);
      value = number;
      return std::string();
    };
    return add(name, help, std::is_floating_point_v<T> ? "X" : "N", read)->default_str(shown(value));
  }

  // One of these texts: `choose` is given its place.
  CLI::Option* add_choice(const std::string& name, const std::string& help, const std::vector<std::string>& choices,
                          const std::string& otherwise, std::function<void(std::size_t)> choose) {
    const auto read = [choices, choose](const std::string& text) {
      const auto found = std::ranges::find(choices, text);
      if (found == choices.end()) return join(choices, ", ");
      choose(static_cast<std::size_t>(found - choices.begin()));
      return std::string();
    };
    return add(name, help, join(choices, "|"), read)->default_str(otherwise);
  }

  template <typename T>
  void train(const std::string& name, T& value, const char* help, T least) {
    const std::string kind = std::is_floating_point_v<T> ? "a number" : "a whole number";
    constexpr T most = std::is_same_v<T, int> ? static_cast<T>(kMostInt) : std::numeric_limits<T>::max();
    training.push_back(add_number<T>(
        name, value, help, kind + " of at least " + shown(least), [least](T x) { return x >= least; }, most));
  }

  template <typename Enum>
  void train(const std::string& name, Enum& value, const char* help, const std::vector<std::string>& names) {
    const auto choose = [&value](std::size_t place) { value = static_cast<Enum>(place); };
    training.push_back(add_choice(name, help, names, names[static_cast<int>(value)], choose));
    writers.push_back(
        [key = name.substr(2), names, &value](nlohmann::json& json) { json[key] = names[static_cast<int>(value)]; });
  }

  // Any text; not part of the record: where a run writes to says nothing about it.
  void add_path(const std::string& name, std::string& value, const char* help, const char* type,
                const std::string& accepted) {
    add(name, help, type, [&value, accepted](const std::string& text) {
      if (!text.empty()) value = text;
      return text.empty() ? accepted : "";
    });
  }

  template <typename T>
  void write(const std::string& name, const T& value) {
    writers.push_back([key = name.substr(2), &value](nlohmann::json& json) { json[key] = value; });
  }
};

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
  i.train("--activation", activation, "between the layers", {"none", "relu", "gelu"});
  i.train("--optimizer", optimizer, "update rule", {"sgd", "adamw"});
  i.train("--lr", lr, "learning rate", 0.0);
  i.train("--weight-decay", weight_decay, "default: 0 for sgd, 0.01 for adamw", 0.0);
  i.training.back()->default_str("");
  i.train("--samples", samples, "samples in the data set", 1);
  i.train("--batch-size", batch_size, "samples a rank and (micro-)batch", 1);
  i.train("--epochs", epochs, "passes over the data set", 1);
  i.train("--max-steps", max_steps, "stop after so many steps; 0: no limit", 0);
  i.training.push_back(
      app.add_flag("--shuffle,!--no-shuffle", shuffle, "a new order of the samples every epoch (default: on)"));
  i.write("--shuffle", shuffle);
  i.train("--seed", seed, "seed of the data set", std::uint64_t{0});
  i.train("--model-seed", model_seed, "seed of the initial parameters; default: that of the course's run",
          std::uint64_t{0});
  i.model_seed = i.training.back()->default_str("");
  i.train("--log-every", log_every, "steps between printed losses; 0: the last of each epoch alone", 0);

  i.add_path("--record", record, "write the run record (JSON Lines)", "FILE", "a file to write");
  i.add_path("--timeline", timeline, "write the timeline (open it in ui.perfetto.dev)", "FILE", "a file to write");
}

Options::~Options() = default;

void Options::with_checkpoints(const std::string& format) {
  impl_->add_path("--checkpoints", checkpoints, "save checkpoints to this folder", "FOLDER", "a folder to write to");
  impl_->add_path("--resume", resume, "go on from this checkpoint, or from the newest in this folder", "FOLDER",
                  "a folder to read");
  add("--save-every", save_every, "steps between checkpoints; 0: one at the end", 0);
  add("--keep", keep, "checkpoints to keep, the newest ones; 0: all", 0);
  checkpoint_format = format;
  add("--checkpoint-format", checkpoint_format, "one file, gathered on rank 0, or one a rank", {"full", "sharded"});
}

void Options::with_accumulation() {
  add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
}

void Options::with_validation() {
  validates_ = true;
  add("--validation-samples", validation_samples, "last samples of the data set, not trained on", 0);
}

// What the language model is trained with unless an option says otherwise. On the workshop's stories it is large
// enough, and trained for long enough, to come within a few percent of the best possible perplexity.
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

void Options::with_gpt() {
  model = ModelKind::gpt;
  without({"--layers", "--activation", "--samples"});
  add_gpt_options({"none", "blocks"});
  with_accumulation();
  add("--generate", gpt.generate, "text to go on with after the training", {});
  add("--tokens", gpt.tokens, "words to generate", 1);
  impl_->add_number<double>("--temperature", gpt.temperature, "logits are divided by it; 0: the most likely word",
                            "a number of at least 0", at_least_0, kMostDouble);
  for (const GptDefault& value : kGptDefaults) impl_->app.get_option(value.option)->default_str(either(value));
}

void Options::with_models(const std::vector<std::string>& recompute) {
  impl_->train("--model", model, "what is trained: an MLP, or a language model", {"mlp", "gpt"});
  add_gpt_options(recompute);
  for (const GptDefault& value : kGptDefaults) {
    CLI::Option* option = impl_->app.get_option(value.option);
    const std::string otherwise = option->get_default_str();
    option->default_str((otherwise.empty() ? "" : otherwise + "; ") + "gpt: " + either(value));
  }
}

void Options::add_gpt_options(const std::vector<std::string>& recompute) {
  const std::size_t before = impl_->app.get_options().size();
  const std::string folder = "folder with train.txt, valid.txt and test.txt";
  impl_->add_path("--text", gpt.text, folder.c_str(), "FOLDER", "a folder to read");
  add("--words", gpt.words, "words of the stories to train on, which are the text where --text names none", 1,
      2'000'000);
  add("--vocabulary", gpt.vocabulary, "words to tell apart, all others are <unk>; 0: all", 0);
  add("--context", gpt.context, "tokens a sample", 1);
  add("--width", gpt.width, "numbers a token", 1);
  add("--heads", gpt.heads, "attention heads; they divide the width", 1);
  add("--blocks", gpt.blocks, "blocks of attention and MLP", 1, 1 << 10);
  const auto probability = [](double x) { return x >= 0 && x < 1; };
  impl_->add_number<double>("--dropout", gpt.dropout, "probability that a value is dropped",
                            "a number of at least 0 and less than 1", probability, 1);
  add("--peak-tflops", gpt.peak_tflops, "of a rank's device, for the share of it that is used; default: measured", 0.0);
  impl_->app.get_option("--peak-tflops")->default_str("");
  const std::vector<CLI::Option*> all = impl_->app.get_options();
  impl_->of_gpt.assign(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());

  add("--recompute", gpt.recompute, "what the backward pass computes again instead of keeping it", recompute);
  add("--warmup-steps", step_size.warmup_steps, "steps in which the learning rate rises to --lr", 0);
  add("--lr-schedule", step_size.lr_schedule, "after that: cosine goes down to a tenth", {"constant", "cosine"});
  impl_->add_number<double>("--clip-norm", step_size.clip_norm, "largest norm of the gradient; 0: any",
                            "a number of at least 0", at_least_0, kMostDouble);
}

// Ends the program on options of the model that is not trained; leaves them out of the record, and uses the defaults
// of the one that is.
void Options::use_model() {
  const auto given = [](const CLI::Option* option) { return option->count() > 0; };
  const bool is_gpt = model == ModelKind::gpt;
  std::vector<CLI::Option*> others = impl_->of_gpt;
  if (is_gpt) {
    others.clear();
    for (const char* name : {"--layers", "--activation", "--samples", "--validation-samples"}) {
      if (CLI::Option* option = impl_->app.get_option_no_throw(name)) others.push_back(option);
    }
  }
  for (const CLI::Option* option : others) {
    const std::string name = option->get_name();
    if (given(option)) usage_error("%s is for --model %s alone", name.c_str(), is_gpt ? "mlp" : "gpt");
    impl_->left_out.push_back(name.substr(2));
  }
  if (!is_gpt && gpt.recompute == "blocks") usage_error("--recompute is 'blocks'; expected another: an MLP has none");
  if (!is_gpt) return;
  for (const GptDefault& value : kGptDefaults) {
    CLI::Option* option = impl_->app.get_option(value.option);
    if (given(option)) continue;
    option->add_result(gpt.text.empty() ? value.on_stories : value.text);
    option->run_callback();
  }
  if (gpt.width % gpt.heads != 0) {
    usage_error("--width is '%d'; expected a multiple of the %d of --heads", gpt.width, gpt.heads);
  }
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
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    usage_error("%s (--help lists what is accepted)", message.c_str());
  }
  if (impl_->model_seed != nullptr && impl_->model_seed->count() == 0) {
    const bool distributed = sampling_ == Sampling::distributed;
    model_seed = !shuffle ? kModelSeedInOrder : distributed ? kModelSeedDistributed : kModelSeedShuffled;
  }
  use_model();
  const auto has = [&](const char* name) { return std::ranges::find(impl_->left_out, name) == impl_->left_out.end(); };
  if (has("layers") && has("batch-size")) require_sizes(*this);
  if (save_every > 0 && checkpoints.empty()) usage_error("--save-every needs a folder to save to: --checkpoints");
  if (validation_samples >= samples) {
    usage_error("--validation-samples is '" + std::to_string(validation_samples) + "'; expected fewer than the " +
                std::to_string(samples) + " of --samples");
  }
  if (weight_decay < 0) weight_decay = optimizer == OptimizerKind::adamw ? 0.01 : 0.0;
}

std::string Options::layers_text() const {
  std::string text;
  for (int width : layers) text += (text.empty() ? "" : ",") + std::to_string(width);
  return text;
}

std::string Options::json() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& write : impl_->writers) write(json);
  for (const std::string& name : impl_->left_out) json.erase(name);
  return json.dump();
}

}  // namespace workshop
