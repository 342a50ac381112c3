// SPDX-License-Identifier: Apache-2.0
// What a participant's function may call besides NCCL. All of it enqueues work and returns.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "common/base/check.h"

namespace golf {

// Streams that the judge gives to a function.
inline constexpr int kStreams = 4;

// sum[count] += x[count]. Takes no time on the simulated machine.
void add(float* sum, const float* x, int count, cudaStream_t stream, const char* file = __builtin_FILE(),
         int line = __builtin_LINE());

// to[count] = from[count]. Takes no time on the simulated machine.
void copy(float* to, const float* from, int count, cudaStream_t stream);

// Makes later work on `stream` wait for all work that is now on `other`: cudaEventRecord and cudaStreamWaitEvent.
void wait(cudaStream_t stream, cudaStream_t other);

// C[m, n] = A[m, k] · B[k, n], row-major. Takes 2mkn operations of the device.
void multiply(const float* A, const float* B, float* C, int m, int k, int n, cudaStream_t stream);

// Replaces x[count] with gelu(x). Takes `count` operations of the device.
void gelu(float* x, int count, cudaStream_t stream, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace golf
