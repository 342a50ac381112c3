// SPDX-License-Identifier: Apache-2.0
// Lets one program stand for many mistakes: each TODO's region holds the solution and, beside it, its wrong fillings.
#pragma once

#include <cstdlib>
#include <string_view>

namespace workshop {

// Is this the wrong filling that WORKSHOP_FILLING asks for, "02.1-sum" say?
inline bool filling(std::string_view mistake) {
  static const char* const wanted = std::getenv("WORKSHOP_FILLING");
  return wanted != nullptr && mistake == wanted;
}

}  // namespace workshop
