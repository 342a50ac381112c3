// SPDX-License-Identifier: Apache-2.0
// The implementation of Options: reads and writes values with CLI11 and nlohmann-json.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/format.h"
#include "common/options/options.h"

namespace workshop {

inline std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : separator) + word;
  return joined;
}

// Reads the whole text as a number. Returns false if it is not a number or does not fit into T.
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

inline const auto at_least_0 = [](double x) { return x >= 0; };
inline constexpr double kMostDouble = std::numeric_limits<double>::max();
inline constexpr int kMostInt = 1 << 30;  // largest value of an option: the sum of two still fits into an int

struct Options::Impl {
  // Reads the text of an option. Returns "" on success, else what would be accepted.
  using Read = std::function<std::string(const std::string&)>;

  CLI::App app;
  std::map<std::string, Read> readers;  // by option name
  CLI::Option* model_seed = nullptr;
  std::vector<std::function<void(nlohmann::json&)>> writers;  // each writes one option and its value
  std::vector<CLI::Option*> training;
  std::vector<std::pair<CLI::Option*, std::string>> of_models;  // options of only some models: "gpt or alexnet"
  std::vector<std::string> left_out;  // names of the options that this program or its model does not have

  // Restricts these options to some models, such as "gpt or alexnet".
  void only_for(const std::string& models, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (CLI::Option* option = app.get_option_no_throw(name)) of_models.emplace_back(option, models);
    }
  }
  // Makes --help also show a model's own default of an option.
  void show_default(const std::string& name, const std::string& of_model, const std::string& text) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return;
    const std::string otherwise = option->get_default_str();
    option->default_str((otherwise.empty() ? "" : otherwise + "; ") + of_model + ": " + text);
  }
  // Sets an option that was not given on the command line, overriding the default of its declaration.
  void set_default(const std::string& name, const std::string& text) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr || option->count() > 0) return;
    option->add_result(text);
    option->run_callback();
  }
  bool given(const std::string& name) const {
    const CLI::Option* option = app.get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
  }

  // Reads texts with `read` instead of CLI11's conversions, which read 010 as 8 and do not say what they accept.
  CLI::Option* add(const std::string& name, const std::string& help, const std::string& type, const Read& read) {
    readers[name] = read;
    CLI::callback_t callback = [name, read](const CLI::results_t& texts) {
      const std::string accepted = read(texts.back());
      if (!accepted.empty()) {
        usage_error("%s is '%s'; expected %s", name.c_str(), texts.back().c_str(), accepted.c_str());
      }
      return true;
    };
    return app.add_option(name, callback, help)->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  // Adds a number for which accepts() must hold (`accepted` says so in words) and that is at most `most`.
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

  // Adds an option whose value is one of `choices`; choose() gets its index.
  CLI::Option* add_choice(const std::string& name, const std::string& help, const std::vector<std::string>& choices,
                          const std::string& otherwise, const std::function<void(std::size_t)>& choose) {
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

  // Adds a path, which may be any text. Paths are not part of the record, because they say nothing about the run.
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

}  // namespace workshop
