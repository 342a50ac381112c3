// SPDX-License-Identifier: Apache-2.0
#include "tools/shared/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <sstream>
#include <type_traits>
#include <vector>

namespace workshop::tools {
namespace {

// Checks that the whole text is a number within these bounds. Rewrites a whole number in decimal, because CLI11 reads
// 010 as 8.
template <typename T>
CLI::Validator number(T at_least, T at_most, const std::string& expected) {
  const auto check = [=](std::string& text) {
    T number{};
    std::istringstream stream(text);
    const bool whole = (stream >> number) && stream.peek() == std::istringstream::traits_type::eof();
    if (!whole || number < at_least || number > at_most) return "'" + text + "' is not " + expected;
    if constexpr (std::is_integral_v<T>) text = std::to_string(number);
    return std::string();
  };
  return {check, ""};
}

// Describes what is wrong with a command line, in one line.
std::string message_of(const CLI::ParseError& error, const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  const auto unknown = std::ranges::find_if(left, [](const std::string& word) { return word.starts_with('-'); });
  if (unknown != left.end()) return "there is no option '" + *unknown + "'; --help lists all options";
  if (!left.empty()) return "'" + left.front() + "' is one argument too many";
  std::string message = error.what();
  const std::string name = message.substr(0, message.find_first_of(": "));
  const CLI::Option* option = app.get_option_no_throw(name);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return name + " lacks its value";
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && option != nullptr) {
    return name + " is missing: " + option->get_description();
  }
  std::ranges::replace(message, '\n', ' ');
  return message;
}

}  // namespace

struct Arguments::Impl {
  CLI::App app;

  template <typename T>
  CLI::Option* add(const std::string& name, T& value, const std::string& help) {
    if constexpr (std::is_same_v<T, bool>) {
      return app.add_flag(name, value, help);
    } else {
      CLI::Option* option = app.add_option(name, value, help);
      if constexpr (std::is_same_v<T, double>) {
        const double most = std::numeric_limits<double>::max();
        option->transform(number<double>(-most, most, "a number"));
      } else if constexpr (std::is_same_v<T, int>) {
        using Limits = std::numeric_limits<int>;
        option->transform(number<int>(Limits::min(), Limits::max(), "a whole number"));
      } else if (name.starts_with("--")) {
        option->allow_extra_args(false);
      }
      return option;
    }
  }
};

Arguments::Arguments(const std::string& tool, const std::string& description) : impl_(std::make_unique<Impl>()) {
  impl_->app.name(tool);
  impl_->app.description(description);
}

Arguments::~Arguments() = default;

template <typename T>
void Arguments::add(const std::string& name, T& value, const std::string& help) {
  impl_->add(name, value, help);
}

template <typename T>
void Arguments::require(const std::string& name, T& value, const std::string& help) {
  impl_->add(name, value, help)->required();
}

void Arguments::add(const std::string& name, int& value, const std::string& help, int at_least, int at_most) {
  const std::string expected = "a whole number from " + std::to_string(at_least) + " to " + std::to_string(at_most);
  impl_->app.add_option(name, value, help)->transform(number<int>(at_least, at_most, expected));
}

template void Arguments::add(const std::string&, bool&, const std::string&);
template void Arguments::add(const std::string&, int&, const std::string&);
template void Arguments::add(const std::string&, double&, const std::string&);
template void Arguments::add(const std::string&, std::string&, const std::string&);
template void Arguments::add(const std::string&, std::vector<std::string>&, const std::string&);
template void Arguments::require(const std::string&, std::string&, const std::string&);
template void Arguments::require(const std::string&, std::vector<std::string>&, const std::string&);

int Arguments::run(int argc, char** argv, const std::function<int()>& run) {
  CLI::App& app = impl_->app;
  std::string message;
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    message = message_of(error, app);
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), message.c_str());
  return 2;
}

}  // namespace workshop::tools
