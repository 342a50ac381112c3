// SPDX-License-Identifier: Apache-2.0
// What an exercise says about itself: a TODO that is not filled in, and the numbers that one has written.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <span>

#include "common/record/label.h"

namespace workshop {

[[noreturn]] void todo_on_host(const char* id, const char* file, int line);

// Stands where a participant has to write something, in a kernel too: todo("02.1"). It prints the TODO's number, its
// text and its place, once a job, and ends every rank with status 77.
[[noreturn]] __host__ __device__ inline void todo(const char* id, const char* file = __builtin_FILE(),
                                                  int line = __builtin_LINE()) {
#ifdef __CUDA_ARCH__
  __assert_fail("this TODO is not filled in yet", file, line, id);  // the host ends with cudaErrorAssert
  while (true) __trap();
#else
  todo_on_host(id, file, line);
#endif
}

// Records `shape` numbers as they are at this point of `stream`, in device or pinned host memory, under the number of
// the TODO that has just written them. It does not wait: the copy is one more operation of the stream. Only the first
// kProbedSteps steps are probed.
void probe(const char* todo, Label name, const float* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
void probe(const char* todo, Label name, const int* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
inline constexpr int kProbedSteps = 3;

// Records numbers that a TODO has worked out on the host.
void probe(const char* todo, Label name, std::span<const int> values);
void probe(const char* todo, Label name, std::span<const double> values);

// probe() of bfloat16s, which go to the record as floats.
void probe_bfloat16(const char* todo, Label name, const void* tensor, std::initializer_list<int> shape,
                    cudaStream_t stream, const char* file, int line);

}  // namespace workshop
