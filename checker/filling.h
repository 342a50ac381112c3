// SPDX-License-Identifier: Apache-2.0
// Lets one program make any known mistake: each region holds the right code and wrong fillings.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

namespace workshop {

// True if WORKSHOP_FILLING asks for this wrong filling, such as "02.1-sum". Always false in a kernel on a GPU, which
// cannot read the environment.
__host__ __device__ inline bool filling([[maybe_unused]] const char* mistake) {
#ifdef __CUDA_ARCH__
  return false;
#else
#ifndef WORKSHOP_EMULATES_GPU_THREADS  // there, a variable of all threads would be shared memory
  static
#endif
      const char* const wanted = std::getenv("WORKSHOP_FILLING");  // once: kernels ask for each element
  return wanted != nullptr && std::strcmp(mistake, wanted) == 0;
#endif
}

}  // namespace workshop
