// SPDX-License-Identifier: Apache-2.0
// How an exercise reports its state: todo() marks a TODO that is not filled in, probe() records the result of one.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <span>

#include "common/record/label.h"

namespace workshop {

[[noreturn]] void todo_on_host(const char* id, const char* file, int line);

// Marks the place where a participant must write code, such as todo("02.1"), or todo("02.A") for a WRITE region.
// Kernels may contain it too. Prints the region's number, text and place, once per job, and ends every rank with
// status 77.
[[noreturn]] __host__ __device__ inline void todo(const char* id, const char* file = __builtin_FILE(),
                                                  int line = __builtin_LINE()) {
#ifdef __CUDA_ARCH__
  // The host then gets cudaErrorAssert. One thread prints the line; the others wait until the assertion ends them all.
  static unsigned printed = 0;
  if (atomicExch(&printed, 1u) == 0) __assert_fail("this TODO is not filled in yet", file, line, id);
  while (true) __nanosleep(1000);
#else
  todo_on_host(id, file, line);
#endif
}

// Records a tensor in device or pinned host memory, with its values at this point of `stream`. `todo` is the number of
// the TODO that has just written it. Does not wait: the copy is one more operation on the stream. Only the first
// kProbedSteps steps are probed.
void probe(const char* todo, Label name, const float* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
void probe(const char* todo, Label name, const int* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
inline constexpr int kProbedSteps = 3;

// Whether probes record anything now. Skip what only a probe needs, such as a list of numbers, if they do not.
bool probing();

// Records numbers that a TODO has computed on the host.
void probe(const char* todo, Label name, std::span<const int> values);
void probe(const char* todo, Label name, std::span<const double> values);

// probe() for bfloat16s, which are recorded as floats.
void probe_bfloat16(const char* todo, Label name, const void* tensor, std::initializer_list<int> shape,
                    cudaStream_t stream, const char* file, int line);

}  // namespace workshop
