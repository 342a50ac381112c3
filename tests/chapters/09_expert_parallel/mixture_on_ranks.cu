// SPDX-License-Identifier: Apache-2.0
// mixture_on_ranks: a mixture whose experts are spread over all ranks computes what a mixture with all experts does,
// however the tokens are spread over the experts, and on ranks without a sample. Prints the largest difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "09_expert_parallel/moe_parallel.h"
#include "09_expert_parallel/support/mixture_options.h"
#include "common/job/job.h"

using namespace workshop;

namespace {

// A mixture with its memory.
class Machine {
 public:
  Machine(std::shared_ptr<Mixture> mixture, const Options& options, cudaStream_t stream)
      : mixture_(std::move(mixture)), options_(options), blas_(stream), stream_(stream) {
    int count = 0;
    for (const Parameter& p : parameters_ = mixture_->parameters("block")) count += p.count();
    values_ = DeviceBuffer<float>(count, Memory::parameters);
    grads_ = DeviceBuffer<float>(count, Memory::gradients);
    int offset = 0;
    for (Parameter& p : parameters_) {
      p.value = values_.data() + offset;
      p.grad = grads_.data() + offset;
      offset += p.count();
    }
    mixture_->bind("block", parameters_.data());
    const int batch = options.batch_size, T = options.gpt.context;
    mixture_->allocate(batch, stream);
    saved_.buffers.resize(9);
    for (int size : mixture_->saved()) saved_.buffers.emplace_back(batch * size, Memory::activations);
    scratch_ = DeviceBuffer<float>(batch * mixture_->scratch(), Memory::activations);
    ones_ = DeviceBuffer<float>(batch * T, Memory::data);
    launch(fill, batch * T, stream, ones_.data(), 1.0f, batch * T);
  }

  // Draws all parameters. The router's weights then are all `router` times what was drawn.
  void draw(std::uint64_t seed, float router) {
    std::vector<float> values(values_.size());
    Generator generator(seed);
    mixture_->draw(generator, values.data());
    const int of_router = parameters_[0].count();
    for (int i = 0; i < of_router; ++i) values[i] *= router;
    values_.upload(values, stream_);
  }

  // Computes y and dx[samples·T, E].
  void run(const float* x, const float* dy, float* y, float* dx, int samples) {
    saved_.batch = {};
    saved_.batch.samples_of_step = options_.batch_size;
    mixture_->forward(blas_, x, y, saved_, samples, 0, options_.gpt.context, Dropout(0, 0, 0, 0, {}));
    const Gradients g{blas_, ones_.data(), samples, 0, nullptr, nullptr, nullptr, true};
    mixture_->backward(x, dy, dx, scratch_.data(), saved_, g, Dropout(0, 0, 0, 0, {}));
  }

  // The gradients by name.
  std::vector<float> gradient(const std::string& name) const {
    for (const Parameter& p : parameters_) {
      if (p.name != name) continue;
      std::vector<float> host(p.count());
      CUDA_CHECK(cudaMemcpyAsync(host.data(), p.grad, host.size() * 4, cudaMemcpyDeviceToHost, stream_));
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      return host;
    }
    fail(kFailed, "no parameter " + name);
  }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  float* grads() const { return grads_.data(); }
  int count() const { return static_cast<int>(grads_.size()); }

 private:
  std::shared_ptr<Mixture> mixture_;
  const Options& options_;
  Blas blas_;
  cudaStream_t stream_;
  std::vector<Parameter> parameters_;
  DeviceBuffer<float> values_, grads_, scratch_, ones_;
  Saved saved_;
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, scale = 1e-3;
  for (float value : b) scale = std::max(scale, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]) / scale;
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("09_expert_parallel/mixture_on_ranks", "Compares two mixtures.");
  ExpertOptions how;
  how.add_to(options);
  add_mixture_options(options, "full");
  options.parse(argc, argv);
  how.complete(options, process_ranks().world);
  Job job(options);
  const Stream stream;
  const int T = options.gpt.context, E = options.gpt.width, B = options.batch_size, values = B * T * E;
  Machine whole(std::make_shared<Mixture>(options.gpt, T), options, stream);
  Machine part(
      std::make_shared<Mixture>(options.gpt, T, std::make_shared<ParallelExperts>(options.gpt, T, how, job.group())),
      options, stream);

  Generator generator(7 + job.rank());
  std::vector<float> host(values);
  DeviceBuffer<float> x(values, Memory::data), dy(values, Memory::data), y[2], dx[2];
  for (DeviceBuffer<float>* buffer : {&x, &dy}) {
    generator.uniform(host.data(), values, -1, 1);
    buffer->upload(host, stream);
  }
  for (int i = 0; i < 2; ++i) {
    y[i] = DeviceBuffer<float>(values, Memory::data);
    dx[i] = DeviceBuffer<float>(values, Memory::data);
  }
  double largest = 0;
  // Scores that are all equal: every token takes experts 0 to K - 1. Then the usual ones, and very unequal ones.
  for (const float router : {0.0f, 1.0f, 300.0f}) {
    for (const bool some_are_idle : {false, true}) {
      const int samples = some_are_idle ? std::max(0, B - job.rank()) : B;
      for (Machine* machine : {&whole, &part}) {
        machine->draw(11, router);
        const int i = machine == &part;
        machine->run(x.data(), dy.data(), y[i].data(), dx[i].data(), samples);
      }
      const std::size_t count = static_cast<std::size_t>(samples) * T * E;
      largest = std::max(largest, largest_difference(y[1].download(count, stream), y[0].download(count, stream)));
      largest = std::max(largest, largest_difference(dx[1].download(count, stream), dx[0].download(count, stream)));
      // An expert's gradients are the sums over all ranks.
      NCCL_CHECK(ncclAllReduce(whole.grads(), whole.grads(), whole.count(), ncclFloat, ncclSum, job.comm(), stream));
      for (const Parameter& p : part.parameters()) {
        if (p.name.find(".experts.") == std::string::npos) continue;
        largest = std::max(largest, largest_difference(part.gradient(p.name), whole.gradient(p.name)));
      }
    }
  }
  for (const double of_rank : job.group().gather(largest)) largest = std::max(largest, of_rank);
  print0("largest difference %.2g\n", largest);
  return largest <= 1e-5 ? 0 : 1;
}
