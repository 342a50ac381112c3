// SPDX-License-Identifier: Apache-2.0
// Shared by all cuBLAS calls of the cpu backend: the handle, scalars on host or device, and the check of what a call
// reads and writes, before it is enqueued.
#pragma once

#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend_cpu/blocking.h"
#include "backend_cpu/openblas.h"
#include "backend_cpu/order.h"
#include "backend_cpu/ranges.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/stream.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
};

namespace workshop::cpu {

// alpha or beta. A scalar on the host is read when the function is called, one on the device when the operation runs.
class Scalar {
 public:
  Scalar(cublasHandle_t handle, const float* pointer) {
    if (handle->mode == CUBLAS_POINTER_MODE_DEVICE) {
      constexpr const char* kCall = "a cuBLAS call in CUBLAS_POINTER_MODE_DEVICE";
      ByteRange scalar = {"alpha or beta", pointer, sizeof(float), /*writes=*/false, sizeof(float), "floats"};
      scalar.on_device = true;
      check_bounds(kCall, {&scalar, 1}, device_of(handle->stream));
      device_ = pointer;
    } else {
      host_ = *pointer;
    }
  }
  float value() const { return device_ == nullptr ? host_ : *device_; }
  bool is_zero() const { return device_ == nullptr && host_ == 0; }

 private:
  const float* device_ = nullptr;
  float host_ = 0;
};

inline bool valid(cublasOperation_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

inline CBLAS_TRANSPOSE cblas_op(cublasOperation_t op) { return op == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; }

// Returns the smallest leading dimension of a column-major matrix that op() turns into [rows, columns].
inline int stored_rows(cublasOperation_t op, int rows, int columns) {
  return std::max(1, op == CUBLAS_OP_N ? rows : columns);
}

// The type of a matrix's elements.
struct Element {
  std::size_t bytes;
  const char* name;  // in messages, plural
};
template <typename T>
constexpr Element element_of() {
  return {sizeof(T), std::is_same_v<T, float> ? "floats" : "bfloat16s"};
}

// The matrices of one argument, one per product of a batch, in column-major order.
struct Argument {
  template <typename T>
  Argument(const char* name, const T* first, int rows, int columns, int ld, bool writes, std::int64_t stride = 0,
           int batch = 1)
      : name(name),
        first(reinterpret_cast<const char*>(first)),
        element(element_of<T>()),
        rows(rows),
        columns(columns),
        ld(ld),
        writes(writes),
        stride(stride),
        batch(batch) {}

  const char* name;
  const char* first;
  Element element;
  int rows, columns, ld;
  bool writes;
  std::int64_t stride;
  int batch;

  std::size_t elements() const {  // from the first to the last
    return static_cast<std::size_t>((batch - 1) * stride + std::int64_t{columns - 1} * ld + rows);
  }
  ByteRange between() const { return range(first, elements()); }
  ByteRange one(int i) const {  // without the gaps between its columns
    ByteRange matrix =
        range(first + i * stride * static_cast<std::int64_t>(element.bytes), static_cast<std::size_t>(rows));
    matrix.count = static_cast<std::size_t>(columns);
    matrix.pitch = static_cast<std::size_t>(ld) * element.bytes;
    return matrix;
  }

 private:
  ByteRange range(const char* begin, std::size_t elements) const {
    return {name, begin, elements * element.bytes, writes, element.bytes, element.name};
  }
};

inline Argument vector_argument(const char* name, const float* x, int n, int increment, bool writes) {
  return {name, x, /*rows=*/1, /*columns=*/n, /*ld=*/std::abs(increment), writes};
}

template <typename T>
Argument operand(const char* name, cublasOperation_t op, int rows, int columns, const T* first, int ld,
                 std::int64_t stride = 0, int batch = 1) {
  const bool as_is = op == CUBLAS_OP_N;
  return {name, first, as_is ? rows : columns, as_is ? columns : rows, ld, /*writes=*/false, stride, batch};
}

// Returns false if the handle's stream belongs to a device that is not current: then the launch must fail. Otherwise
// checks the bounds and the order of the call.
inline bool check_arguments(const char* call, cudaStream_t stream, std::initializer_list<Argument> arguments) {
  if (!may_launch(stream)) {
    cudaGetLastError();  // the call's own status reports it
    return false;
  }
  if (blocks_host()) {  // assume that each shape has its own kernel
    std::size_t kernel = std::hash<std::string_view>()(call);
    for (const Argument& a : arguments) kernel = (kernel * 31 + a.rows) * 31 + a.columns;
    load_kernel(kernel);
  }
  const int device = device_of(stream);
  for (const Argument& a : arguments) {
    if (a.rows <= 0 || a.columns <= 0 || known_to_fit(a.first, a.elements() * a.element.bytes, device)) continue;
    check_bounds(call, {{a.between()}}, device);
  }
  if (!checks_order()) return true;
  std::vector<ByteRange> ranges;
  for (const Argument& a : arguments) {
    for (int i = 0; i < (a.stride == 0 ? 1 : a.batch); ++i) ranges.push_back(a.one(i));
  }
  order_call({stream, source_call(call), ranges});
  return true;
}

}  // namespace workshop::cpu
