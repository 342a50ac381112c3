// SPDX-License-Identifier: Apache-2.0
// The loss of the multilayer perceptron: the mean squared difference between output and target.
#pragma once

#include <array>

#include "common/device/device.h"
#include "common/record/record.h"
#include "model/model.h"
#include "model/rows.h"

namespace workshop {

static __global__ void subtract(float* difference, ConstReals a, const float* b, int n) {
  for (int i : grid_stride(n)) difference[i] = a[i] - b[i];
}

// Adds Σ(prediction - target)² / elements to *loss and writes its gradient to gradient[n]. `elements` is the number of
// values in the whole step: n if the step has one batch, more if this is one of several batches or micro-batches.
// `scratch` is one float on the device.
inline void mse_loss(const Blas& blas, const Real* prediction, const float* target, int n, int elements, float* loss,
                     float* gradient, float* scratch) {
  const cudaStream_t stream = blas.stream();
  probe("01.D", "given to model.loss: number of values in the step", std::array{elements});
  // WRITE 01.D: Compute this batch's share of the loss, and its gradient.
  //   prediction, target and gradient have n values. Add Σ(prediction - target)² / elements to *loss, which holds the
  //   shares of the step's earlier batches, and overwrite gradient with the derivative of this share with respect to
  //   each prediction. loss and scratch are on the device, and the host must not wait for them: if cublasSdot() is to
  //   write its result there, call cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE) before it, and set
  //   CUBLAS_POINTER_MODE_HOST again after it. The kernel add_sum is in model/rows.h; cublasSscal() scales a vector.
  launch(subtract, n, stream, gradient, prediction, target, n);
  // The sum stays on the device. If the host waited for it, it could not enqueue work ahead of the stream.
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
  CUBLAS_CHECK(cublasSdot(blas, n, gradient, 1, gradient, 1, scratch));
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST));
  launch(add_sum, 1, stream, loss, scratch, 1.0f / static_cast<float>(elements), 1);
  // TODO 01.6: Turn the differences in `gradient` into the gradient of the mean square, in place.
  //   What is the derivative of (prediction - target)² / elements with respect to the prediction?
  //   cublasSscal(handle, n, &factor, x, incx) scales a vector.
  const float factor = 2.0f / static_cast<float>(elements);
  CUBLAS_CHECK(cublasSscal(blas, n, &factor, gradient, 1));
  // END TODO 01.6
  // END WRITE 01.D
  probe("01.6", "gradient of the loss", gradient, {n}, stream);
  probe("01.D", "loss so far", loss, {1}, stream);
}

// The mean of (output - target)² over all elements; `out` floats per sample.
class MeanSquaredError : public Loss {
 public:
  explicit MeanSquaredError(int out) : out_(out) {}
  int scratch() const override { return kMixedPrecision ? out_ + 1 : 0; }
  void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
           Real* gradient, float* scratch) const override {
    const int n = samples * out_;
    const auto* target = static_cast<const float*>(y);
    // With mixed precision, the loss and its gradient are computed in float32; the gradient is then rounded.
    float* exact = kMixedPrecision ? scratch + 1 : as_floats_or_null(gradient);
    mse_loss(blas, output, target, n, samples_of_step * out_, loss, exact, scratch);
    if (kMixedPrecision) launch(to_reals, n, blas.stream(), gradient, exact, n);
  }

 private:
  int out_;
};

}  // namespace workshop
