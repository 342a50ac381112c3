// SPDX-License-Identifier: Apache-2.0
// Replaces chapter 01's models.cu: a model that no strategy knows, with residual layers y = x + s·(x Wᵀ), and with a
// loss that is a mean over samples, not elements.
#include "01_single_gpu/mlp.h"
#include "01_single_gpu/models.h"

namespace workshop {
__global__ void add_scaled_columns(float* y, const float* x, const float* z, const float* s, int n, int width) {
  for (int i : grid_stride(n)) y[i] = x[i] + s[i % width] * z[i];
}
__global__ void scale_columns(float* dz, const float* dy, const float* s, int n, int width) {
  for (int i : grid_stride(n)) dz[i] = dy[i] * s[i % width];
}
__global__ void column_dots(float* ds, const float* dy, const float* z, int n, int width, float accumulate) {
  for (int j : grid_stride(width)) {
    ds[j] = accumulate > 0 ? ds[j] : 0;
    for (int i = j; i < n; i += width) ds[j] += dy[i] * z[i];
  }
}
struct ResidualLayer : Layer {
  ResidualLayer(int i, int width) : Layer("residual" + std::to_string(i), width, width) {
    parameters = {{name + ".weight", {width, width}}, {name + ".scale", {width}}};
  }
  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    init_linear(generator, in, out, values.data(), values.data() + in * out);
    return values;
  }
  std::vector<int> saved() const override { return {out, out}; }  // z and y
  const float* forward(const Blas& blas, const void* input, int rows, Saved& saved) override {
    const float* x = static_cast<const float*>(input);
    float *z = saved.buffers[0].data(), *y = saved.buffers[1].data();
    gemm(blas, Op::as_is, Op::transposed, rows, out, in, x, parameters[0].value, 0, z);
    launch(add_scaled_columns, rows * out, blas.stream(), y, x, z, parameters[1].value, rows * out, out);
    return y;
  }
  float* backward(const Saved& saved, const Gradients& g) override {
    const int n = g.samples * out;
    const float *x = static_cast<const float*>(saved.x), *z = saved.buffers[0].data();
    launch(column_dots, out, g.blas.stream(), parameters[1].grad, g.dy, z, n, out, g.accumulate);
    launch(scale_columns, n, g.blas.stream(), g.spare, g.dy, parameters[1].value, n, out);
    gemm(g.blas, Op::transposed, Op::as_is, out, in, g.samples, g.spare, x, g.accumulate, parameters[0].grad);
    gemm(g.blas, Op::as_is, Op::as_is, g.samples, in, out, g.spare, parameters[0].value, 1, g.dy);  // adds to dy itself
    if (g.dx == nullptr) return g.dy;
    CUDA_CHECK(cudaMemcpyAsync(g.dx, g.dy, n * sizeof(float), cudaMemcpyDeviceToDevice, g.blas.stream()));
    return g.dx;
  }
};
struct SquaredErrorPerSample : Loss {
  void add(const Blas& blas, const float* output, const void* y, int samples, int samples_of_step, float* loss,
           float* gradient, float* scratch) const override {
    mse_loss(blas, output, static_cast<const float*>(y), 7 * samples, samples_of_step, loss, gradient, scratch);
  }
};
Network make_network(const Options& options) {
  Network network{{}, std::make_shared<SquaredErrorPerSample>()};
  for (int i = 0; i < 4; ++i) network.layers.push_back(std::make_shared<ResidualLayer>(i, options.layers.front()));
  return network;
}
int depth_of_network(const Options& options) { return make_network(options).depth(); }
}  // namespace workshop
