// SPDX-License-Identifier: Apache-2.0
// Lets one program stand for many mistakes: each TODO's region holds the solution and, beside it, its wrong fillings.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

namespace workshop {

// Is this the wrong filling that WORKSHOP_FILLING asks for, "02.1-sum" say? On a GPU it never is: a kernel knows
// nothing of the environment.
__host__ __device__ inline bool filling([[maybe_unused]] const char* mistake) {
#ifdef __CUDA_ARCH__
  return false;
#else
  static const char* const wanted = std::getenv("WORKSHOP_FILLING");
  return wanted != nullptr && std::strcmp(mistake, wanted) == 0;  // kernels ask for each element
#endif
}

}  // namespace workshop
