// SPDX-License-Identifier: Apache-2.0
// What a run record or a timeline calls something.
#pragma once

#include <string>
#include <string_view>

namespace workshop {

// A name, or one in two parts: {"forward ", layer.name}. They are put together only where something is recorded, so
// that a training step has no strings to make. What they are made of must outlive the call that takes them.
struct Label {
  Label(const char* name) : first(name) {}
  Label(const std::string& name) : first(name) {}
  Label(std::string_view first, std::string_view second) : first(first), second(second) {}

  std::string text() const { return std::string(first).append(second); }

  std::string_view first, second;
};

}  // namespace workshop
