// Trains a multilayer perceptron on one GPU: the program that every later chapter distributes.
#include <cmath>
#include <cstdio>

#include "checkpoint_mlp.h"
#include "common/data.h"
#include "common/job.h"
#include "mlp.h"

using namespace workshop;

namespace {

// The loss of one batch, in double precision and on the host.
double loss_of(Mlp& model, Activations& activations, const Batch& batch, int outputs, cudaStream_t stream) {
  const float* output = model.forward(batch.x, batch.rows, activations);
  std::vector<float> prediction(batch.rows * outputs), target(batch.rows * outputs);
  const std::size_t bytes = prediction.size() * sizeof(float);
  CUDA_CHECK(cudaMemcpyAsync(prediction.data(), output, bytes, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaMemcpyAsync(target.data(), batch.y, bytes, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  double sum = 0;
  for (std::size_t i = 0; i < prediction.size(); ++i)
    sum += std::pow(static_cast<double>(prediction[i]) - target[i], 2);
  return sum / static_cast<double>(prediction.size());
}

// Compares the gradients of a batch with central differences of its loss, (L(p + h) - L(p - h)) / 2h, for up to 100
// values of each parameter. True if all agree: rounding and the kinks of a ReLU leave differences below the tolerance,
// a mistake is of the order of 1.
bool check_gradients(Mlp& model, Activations& activations, const Batch& batch, int outputs, cudaStream_t stream) {
  constexpr float h = 5e-4f;
  constexpr double tolerance = 5e-2;
  DeviceBuffer<float> loss(1, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));
  model.forward(batch.x, batch.rows, activations);
  model.loss(activations, batch.y, batch.rows * outputs, loss.data());
  model.backward(activations);
  CUDA_CHECK(cudaStreamSynchronize(stream));

  bool agree = true;
  for (const Parameter& p : model.parameters()) {
    std::vector<float> grad(p.count), value(p.count);
    CUDA_CHECK(cudaMemcpyAsync(grad.data(), p.grad, p.count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(value.data(), p.value, p.count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    // On the stream, because cudaMemcpy from pageable memory may return before the device has the data.
    const auto set = [&](int i, float shifted) {
      CUDA_CHECK(cudaMemcpyAsync(p.value + i, &shifted, sizeof shifted, cudaMemcpyHostToDevice, stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
    };
    double error = 0, norm = 0;
    for (int i = 0; i < p.count; i += (p.count + 99) / 100) {
      const auto loss_at = [&](float shifted) {
        set(i, shifted);
        return loss_of(model, activations, batch, outputs, stream);
      };
      const float above = value[i] + h, below = value[i] - h;  // as far apart as float32 allows, not quite 2h
      const double difference = (loss_at(above) - loss_at(below)) / (static_cast<double>(above) - below);
      set(i, value[i]);
      error += std::pow(difference - grad[i], 2);
      norm += std::pow(difference, 2);
    }
    error = std::sqrt(error / norm);
    const bool good = error <= tolerance;
    print0("%-10s  relative difference %.1e  %s\n", p.name.c_str(), error, good ? "agrees" : "WRONG");
    agree = agree && good;
  }
  return agree;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("01_single_gpu/mlp", "Trains an MLP on one GPU.");
  bool gradient_check = false;
  options.add_flag("--gradient-check", gradient_check, "compare the gradients with central differences, then train");
  options.with_checkpoints("full");
  options.parse(argc, argv);
  Job job(options);
  if (job.world() != 1)
    usage_error("mlp trains on one GPU; it was started on " + std::to_string(job.world()) + " ranks");

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  Mlp model(options.layers, options.activation, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  ParameterUpdate update(options, model.count(), stream);

  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, 0, 1, stream);

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  add_training(checkpoints, model, update);
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

  if (gradient_check) {
    RandomSampler in_order(options.samples, false, dataset.generator);
    loader.start_epoch(in_order.next_epoch());
    if (!check_gradients(model, activations, loader.batch(0), outputs, stream)) {
      fail(kFailed, "the gradients are wrong");
    }
  }

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      const Batch batch = loader.batch(step);
      model.forward(batch.x, batch.rows, activations);
      model.loss(activations, batch.y, batch.rows * outputs, loss);
      model.backward(activations);
      update.step(model.values(), model.grads());
      checkpoints.step_done(epoch, step + 1, loader);
    }
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  for (const Parameter& p : model.parameters()) record_parameter(0, p.name, p.value, p.shape, stream);
}
