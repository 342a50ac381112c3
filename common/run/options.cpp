#include "common/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/check.h"
#include "common/job.h"

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

const std::vector<std::string> kActivations = {"none", "relu", "gelu"};
const std::vector<std::string> kOptimizers = {"sgd", "adamw"};

template <typename Enum>
void read_choice(const std::vector<std::string>& names, const std::string& text, Enum& value) {
  value = static_cast<Enum>(std::find(names.begin(), names.end(), text) - names.begin());
}

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
    fail(kFailed, error.what());
  } catch (...) {
  }
  std::abort();
}

}  // namespace

struct Options::Impl {
  // One function an option that reads its text: "" or what would be accepted.
  using Read = std::function<std::string(const std::string&)>;

  CLI::App app;
  Sampling sampling;
  CLI::Option* model_seed = nullptr;
  std::vector<std::function<void(nlohmann::json&)>> writers;  // each adds one option and its value
  std::vector<CLI::Option*> training;
  std::vector<std::string> left_out;  // names of shared options that this program does without

  // Texts are checked here and not by CLI11's conversions, so that every message has the same form.
  CLI::Option* add(const std::string& name, const std::string& help, const std::string& type, Read read) {
    CLI::callback_t callback = [name, read](const CLI::results_t& texts) {
      const std::string accepted = read(texts.back());
      if (!accepted.empty()) usage_error(name + " is '" + texts.back() + "'; expected " + accepted);
      return true;
    };
    return app.add_option(name, callback, help)->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  template <typename T>
  CLI::Option* add_number(const std::string& name, T& value, const std::string& help, const std::string& type,
                          const std::string& accepted, std::function<bool(T)> accepts, T at_most) {
    write(name, value);
    std::ostringstream shown;
    shown << value;
    return add(name, help, type,
               [&value, accepted, accepts, at_most](const std::string& text) {
                 T read{};
                 if (!read_number(text, read) || !accepts(read)) return accepted;
                 std::ostringstream most;
                 most << "at most " << at_most;
                 if (read > at_most) return most.str();
                 value = read;
                 return std::string();
               })
        ->default_str(shown.str());
  }

  // Not part of the record: where a run writes to says nothing about it.
  void add_path(const std::string& name, std::string& value, const char* help, const char* type,
                const std::string& accepted) {
    add(name, help, type, [&value, accepted](const std::string& text) {
      if (text.empty()) return accepted;
      value = text;
      return std::string();
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
  if (!fits) usage_error(names + " is more than " + std::to_string(at_most) + "; expected less");
}

Options::Options(std::string program, std::string description, Sampling sampling)
    : program_(std::move(program)), impl_(std::make_unique<Impl>()) {
  std::set_terminate(report_uncaught);
  impl_->sampling = sampling;
  CLI::App& app = impl_->app;
  app.description(description);
  app.name(program_);

  const auto layers_help = "widths of the layers: input,hidden…,output";
  impl_->training.push_back(impl_
                                ->add("--layers", layers_help, "N,N,…",
                                      [this](const std::string& text) {
                                        const std::string accepted =
                                            "two or more widths of at least 1 with commas between, such as 6,4,2";
                                        std::vector<int> widths;
                                        std::istringstream stream(text);
                                        for (std::string word; std::getline(stream, word, ',');) {
                                          int width = 0;
                                          if (!read_number(word, width) || width < 1) return accepted;
                                          widths.push_back(width);
                                        }
                                        if (widths.size() < 2 || text.back() == ',') return accepted;
                                        layers = widths;
                                        return std::string();
                                      })
                                ->default_str("6,4,2"));
  impl_->write("--layers", layers);

  auto add_choice = [this](const std::string& name, const std::vector<std::string>& names, auto& value,
                           const char* help) {
    impl_->training.push_back(impl_
                                  ->add(name, help, join(names, "|"),
                                        [&value, &names](const std::string& text) {
                                          if (std::find(names.begin(), names.end(), text) == names.end())
                                            return join(names, ", ");
                                          read_choice(names, text, value);
                                          return std::string();
                                        })
                                  ->default_str(names[static_cast<int>(value)]));
    impl_->writers.push_back(
        [key = name.substr(2), &names, &value](nlohmann::json& json) { json[key] = names[static_cast<int>(value)]; });
  };
  add_choice("--activation", kActivations, activation, "between the layers");
  add_choice("--optimizer", kOptimizers, optimizer, "update rule");

  auto add_training = [this](const std::string& name, auto& value, const char* help, auto at_least) {
    using T = std::remove_reference_t<decltype(value)>;
    std::ostringstream accepted;
    if constexpr (std::is_floating_point_v<T>) {
      accepted << "a number of at least " << at_least;
    } else {
      accepted << "a whole number of at least " << at_least;
    }
    constexpr T most = std::is_same_v<T, int> ? static_cast<T>(kMostInt) : std::numeric_limits<T>::max();
    impl_->training.push_back(impl_->add_number<T>(
        name, value, help, std::is_floating_point_v<T> ? "X" : "N", accepted.str(),
        [at_least](T x) { return x >= static_cast<T>(at_least); }, most));
  };
  add_training("--lr", lr, "learning rate", 0);
  add_training("--weight-decay", weight_decay, "default: 0 for sgd, 0.01 for adamw", 0);
  impl_->training.back()->default_str("");
  add_training("--samples", samples, "samples in the data set", 1);
  add_training("--batch-size", batch_size, "samples a rank and (micro-)batch", 1);
  add_training("--epochs", epochs, "passes over the data set", 1);
  add_training("--max-steps", max_steps, "stop after so many steps; 0: no limit", 0);
  impl_->training.push_back(
      app.add_flag("--shuffle,!--no-shuffle", shuffle, "a new order of the samples every epoch (default: on)"));
  impl_->write("--shuffle", shuffle);
  add_training("--seed", seed, "seed of the data set", 0);
  add_training("--model-seed", model_seed, "seed of the initial parameters; default: that of the course's run", 0);
  impl_->model_seed = impl_->training.back()->default_str("");
  add_training("--log-every", log_every, "steps between printed losses; 0: the last of each epoch alone", 0);

  impl_->add_path("--record", record, "write the run record (JSON Lines)", "FILE", "a file to write");
  impl_->add_path("--timeline", timeline, "write the timeline (open it in ui.perfetto.dev)", "FILE", "a file to write");
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
  std::string accepted = "a whole number of at least " + std::to_string(at_least);
  if (at_most < kMostInt) {
    accepted = "a whole number from " + std::to_string(at_least) + " to " + std::to_string(at_most);
  }
  const bool range = at_most < kMostInt;  // which `accepted` names
  impl_->add_number<int>(
      name, value, help, "N", accepted, [=](int x) { return x >= at_least && !(range && x > at_most); }, at_most);
}

void Options::add(const std::string& name, double& value, const std::string& help, double greater_than,
                  double at_most) {
  std::ostringstream accepted;
  accepted << "a number greater than " << greater_than;
  impl_->add_number<double>(
      name, value, help, "X", accepted.str(), [=](double x) { return x > greater_than; }, at_most);
}

void Options::add(const std::string& name, std::string& value, const std::string& help,
                  std::vector<std::string> choices) {
  impl_->write(name, value);
  const std::string type = choices.empty() ? "TEXT" : join(choices, "|");
  impl_
      ->add(name, help, type,
            [&value, choices](const std::string& text) {
              if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end())
                return join(choices, ", ");
              value = text;
              return std::string();
            })
      ->default_str(value);
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
    usage_error(message + " (--help lists what is accepted)");
  }
  if (impl_->model_seed != nullptr && impl_->model_seed->count() == 0) {
    const bool distributed = impl_->sampling == Sampling::distributed;
    model_seed = !shuffle ? kModelSeedInOrder : distributed ? kModelSeedDistributed : kModelSeedShuffled;
  }
  const auto has = [&](const char* name) { return std::ranges::find(impl_->left_out, name) == impl_->left_out.end(); };
  if (has("layers") && has("batch-size")) require_sizes(*this);
  if (save_every > 0 && checkpoints.empty()) usage_error("--save-every needs a folder to save to: --checkpoints");
  if (weight_decay < 0) weight_decay = optimizer == Optimizer::adamw ? 0.01 : 0.0;
}

std::string Options::json() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& write : impl_->writers) write(json);
  for (const std::string& name : impl_->left_out) json.erase(name);
  return json.dump();
}

}  // namespace workshop
