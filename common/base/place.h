// SPDX-License-Identifier: Apache-2.0
// The place of a call in the source.
#pragma once

#include <string>
#include <string_view>

#include "common/base/check.h"

namespace workshop {

// "02_ddp/ddp.cu:41": folder, file and line. Empty if the place is unknown.
inline std::string place(const CallSite* site) {
  if (site == nullptr || site->line == 0) return "";
  const std::string_view path = site->file;
  std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos && slash > 0) slash = path.rfind('/', slash - 1);
  return std::string(path.substr(slash == std::string_view::npos ? 0 : slash + 1)) + ":" + std::to_string(site->line);
}

}  // namespace workshop
