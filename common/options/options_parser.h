// SPDX-License-Identifier: Apache-2.0
// How Options reads and writes its values: CLI11, behind common/options/options.h.
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

inline const auto at_least_0 = [](double x) { return x >= 0; };
inline constexpr double kMostDouble = std::numeric_limits<double>::max();
inline constexpr int kMostInt = 1 << 30;  // of an option, so that the sum of two is an int

struct Options::Impl {
  // One function an option that reads its text: "" or what would be accepted.
  using Read = std::function<std::string(const std::string&)>;

  CLI::App app;
  std::map<std::string, Read> readers;  // by the option's name
  CLI::Option* model_seed = nullptr;
  std::vector<std::function<void(nlohmann::json&)>> writers;  // each adds one option and its value
  std::vector<CLI::Option*> training;
  std::vector<std::pair<CLI::Option*, std::string>> of_models;  // options that only these have: "gpt or alexnet"
  std::vector<std::string> left_out;  // names of options that this program, or its model, does without

  // From now on these options are those of some models alone.
  void only_for(const std::string& models, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (CLI::Option* option = app.get_option_no_throw(name)) of_models.emplace_back(option, models);
    }
  }
  // Has --help show a model's own default of an option beside the others.
  void show_default(const std::string& name, const std::string& of_model, const std::string& text) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return;
    const std::string otherwise = option->get_default_str();
    option->default_str((otherwise.empty() ? "" : otherwise + "; ") + of_model + ": " + text);
  }
  // What an option is where it is not given: another default than that of its declaration.
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

  // Texts are checked here and not by CLI11's conversions, which take 010 for 8 and do not say what they would accept.
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

}  // namespace workshop
