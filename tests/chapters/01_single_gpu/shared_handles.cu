// SPDX-License-Identifier: Apache-2.0
// shared_handles: everything on one stream shares a cuBLAS handle, which lives as long as one of its users.
#include <cstdio>

#include "common/device/device.h"
#include "model/blas.h"

using namespace workshop;

namespace {

bool expect(bool condition, const char* what) {
  if (!condition) std::printf("not so: %s\n", what);
  return condition;
}

cublasHandle_t handle(const Blas& blas) { return blas; }

cudaStream_t stream_of(const Blas& blas) {
  cudaStream_t stream = nullptr;
  CUBLAS_CHECK(cublasGetStream(blas, &stream));
  return stream;
}

}  // namespace

int main() {
  const Stream one, two;
  const Blas first(one), other(two);
  bool good = expect(handle(Blas(one)) == handle(first), "a handle for each stream");
  good &= expect(handle(Blas(one)) == handle(first), "a handle that lives on");
  good &= expect(handle(other) != handle(first), "another for another stream");
  good &= expect(stream_of(first) == one && stream_of(other) == two, "that works on its stream");
  return good ? 0 : 1;
}
