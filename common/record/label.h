// SPDX-License-Identifier: Apache-2.0
// A name in a run record or a timeline.
#pragma once

#include <string>
#include <string_view>

namespace workshop {

// A name of one or two parts: {"forward ", layer.name}. The parts are joined only if something is recorded, so that a
// training step builds no strings. The strings passed to it must outlive the call that takes the label.
struct Label {
  Label(const char* name) : first(name) {}
  Label(const std::string& name) : first(name) {}
  Label(std::string_view first, std::string_view second) : first(first), second(second) {}

  std::string text() const { return std::string(first).append(second); }

  std::string_view first, second;
};

}  // namespace workshop
