// SPDX-License-Identifier: Apache-2.0
// Model parallelism as handbooks show it first: a single process, which puts some layers on each device. It copies the
// data that model_parallel sends, and events order the copies.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/models.h"
#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/model_stage.h"
#include "03_model_parallel/support/partition_option.h"
#include "common/data/dataset.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

namespace {

// The layers on one device: the device that is current when the part is created.
struct Part {
  Part(const Network& network, LayerRange layers, const Options& options, int number)
      : name("part " + std::to_string(number)),
        stage(network, layers, options, stream),
        norm(options.needs_norm() ? 1 : 0, Memory::data),
        correct(network.images != nullptr ? 1 : 0, Memory::data) {}

  // Computes the part's output from x[batch.samples, stage.in]. This function and the two below require that the part's
  // device is current.
  const Real* forward(const Batch& batch, const void* x) {
    if (probing()) probe("03.G", "given to part.forward: current device, for " + name, std::array{current_device()});
    probe("03.7", {"input of ", name}, static_cast<const Real*>(x), {batch.samples, stage.in}, stream);
    return stage.forward(batch, x);
  }
  // Computes the part's gradients from the gradient of its output in stage.model.output_gradient(). Writes the gradient
  // of its input to dx[rows, stage.in], unless dx is null.
  void backward(int rows, Real* dx) {
    if (probing()) probe("03.H", "given to part.backward: current device, for " + name, std::array{current_device()});
    if (probing())
      probe("03.8", "gradient of " + name + "'s output", stage.model.output_gradient(), {rows, stage.out}, stream);
    stage.backward(dx);
    probe("03.8", {"gradient of ", name}, stage.model.grads(), {stage.model.count()}, stream);
  }
  // Updates the part's parameters.
  void step(const float* whole_norm, double lr_factor) {
    if (probing()) probe("03.9", "factor of the learning rate of " + name, std::array{lr_factor});
    if (probing() && stage.clipping.enabled())
      probe("03.9", "1 if there is a norm to clip by, for " + name, std::array{int{whole_norm != nullptr}});
    stage.step(whole_norm, lr_factor);
  }

  const std::string name;
  const int device = current_device();
  Stream stream;
  Event done;  // recorded on the stream after work that another part waits for
  ModelStage stage;
  DeviceBuffer<float> norm;     // of the whole model's gradient; empty if it is not needed
  DeviceBuffer<float> correct;  // the share of right answers, used on the last part; empty if not counted
};
using Parts = std::vector<std::unique_ptr<Part>>;

// Lets devices that can reach each other copy directly, over NVLink or PCIe. Without this, CUDA takes the copies
// through the host's memory.
void enable_peer_access(int devices) {
  for (int device = 0; device < devices; ++device) {
    const OnDevice on_device(device);
    for (int peer = 0; peer < devices; ++peer) {
      int can = 0;
      if (peer != device) CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
      if (can) CUDA_CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    }
  }
}

// Makes the parts. Part i is on device i, or, if there are fewer devices, on device i % devices.
Parts place_parts(const Network& network, const std::vector<int>& bounds, const Options& options, int devices) {
  Parts parts;
  const int count = static_cast<int>(bounds.size()) - 1;
  for (int i = 0; i < count; ++i) {
    const LayerRange layers{bounds[i], bounds[i + 1]};
    const int device = i % devices;
    // TODO 03.6: Create part i on its device, and append it to `parts`.
    //   Everything that a program allocates or creates belongs to the current device: cudaSetDevice(device). Create the
    //   part with std::make_unique<Part>(network, layers, options, i).
    todo("03.6");
    // END TODO 03.6
  }
  std::vector<int> where;
  for (const auto& part : parts) {
    cudaPointerAttributes memory{};
    CUDA_CHECK(cudaPointerGetAttributes(&memory, part->stage.model.values()));
    where.insert(where.end(), {memory.device, part->device});
  }
  probe("03.6", "device of each part's memory, and of its stream", where);
  if (static_cast<int>(parts.size()) != count) fail(kFailed, "there are not as many parts as devices: see TODO 03.6");
  return parts;
}

// Records what copy() is asked to do.
void probe_before_copy(const Part& to, const Part& from, const void* source, std::size_t bytes) {
  if (!probing()) return;
  const OnDevice on_device(from.device);
  const std::string way = "from " + from.name + " to " + to.name;
  const int count = static_cast<int>(bytes / sizeof(float));
  probe("03.F", "given to copy: numbers " + way, std::array{count});
  if (source == nullptr) return;  // then the copy fails
  probe("03.F", "given to copy: source " + way, static_cast<const float*>(source), {count}, from.stream);
}

// Copies `bytes` bytes from `source` on one part to `target` on another: after everything enqueued so far on the stream
// of `from`, and before anything enqueued later on the stream of `to`.
void copy(Part& to, void* target, Part& from, const void* source, std::size_t bytes) {
  probe_before_copy(to, from, source, bytes);
  // TODO 03.7: Copy from device to device, on the stream of `to`, after the work so far on the stream of `from`.
  //   Record from.done, let to.stream wait for it, and copy with cudaMemcpyPeerAsync(target, its device, source, its
  //   device, bytes, stream). The device of a part is part.device. The host must not wait.
  todo("03.7");
  // END TODO 03.7
}

// Records what the forward pass begins with. Reads the old inputs, because the copies of new ones must wait for that.
void probe_before_forward(Parts& parts, const Batch& batch) {
  if (!probing()) return;
  probe("03.I", "given to forward_parts: samples and step of the batch", std::array{batch.samples, batch.step});
  for (const auto& part : parts) {
    const OnDevice on_device(part->device);
    const ModelStage& stage = part->stage;
    const std::string of = " of " + part->name;
    probe("03.I", "given to forward_parts: steps of the clock and whether it measures" + of, stage.clock.steps());
    probe("03.I", "given to forward_parts: parameters" + of, stage.model.values(), {stage.model.count()}, part->stream);
    if (part == parts.front()) continue;
    probe("03.I", "given to forward_parts: old input" + of, stage.received.data(), {1, stage.in}, part->stream);
  }
}

// Forward pass: starts from the batch on the first device and ends with the predictions on the last.
void forward_parts(Parts& parts, const Batch& batch) {
  probe_before_forward(parts, batch);
  const void* x = batch.x;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    ModelStage& stage = part.stage;
    CUDA_CHECK(cudaSetDevice(part.device));  // kernels are launched on streams of the current device only
    Batch own = batch;
    if (i > 0) {
      if (batch.correct != nullptr) own.correct = part.correct.data();
      copy(part, stage.received.data(), *parts[i - 1], x, batch.samples * stage.in * sizeof(Real));
      x = stage.received.data();
    }
    x = part.forward(own, x);
  }
  const Part& last = *parts.back();
  const OnDevice on_device(last.device);
  probe("03.G", "output of the last part", static_cast<const Real*>(x), {batch.samples, last.stage.out}, last.stream);
}

// Records what the backward pass begins with.
void probe_before_backward(Parts& parts, int rows) {
  if (!probing()) return;
  for (const auto& part : parts) {
    const OnDevice on_device(part->device);
    Model& model = part->stage.model;
    const bool last = part == parts.back();
    if (last) {
      probe("03.H", "given to backward_parts: gradient of the loss", model.output_gradient(), {rows, part->stage.out},
            part->stream);
    }
    probe("03.H", "given to backward_parts: parameters of " + part->name, model.values(), {model.count()},
          part->stream);
  }
}

// Backward pass: the last part already has the gradient of its output, from the loss.
void backward_parts(Parts& parts, int rows) {
  probe_before_backward(parts, rows);
  const int last = static_cast<int>(parts.size()) - 1;
  for (int i = last; i >= 0; --i) {
    Part& part = *parts[i];
    ModelStage& stage = part.stage;
    Real* gradient = stage.model.output_gradient();
    Real* dx = i > 0 ? stage.input_gradient.data() : nullptr;
    // TODO 03.8: Copy the gradient of this part's output from part i + 1, if there is one, and compute, on part.device.
    //   On part i + 1, it is stage.input_gradient.data(). Copy it to `gradient` here, [rows, stage.out] Reals, with
    //   copy(). Then call part.backward(rows, dx), as in TODO 03.4. forward_parts() shows what else is needed.
    todo("03.8");
    // END TODO 03.8
  }
}

// Computes the norm of the whole gradient on every device, and copies it to *norm on the first one. Each part adds its
// squares to the sum that it gets from the previous part.
void find_norm(Parts& parts, float* norm) {
  Part &first = *parts.front(), &last = *parts.back();
  const std::size_t bytes = sizeof(float);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    CUDA_CHECK(cudaSetDevice(part.device));
    if (i == 0) CUDA_CHECK(cudaMemsetAsync(part.norm.data(), 0, bytes, part.stream));
    if (i > 0) copy(part, part.norm.data(), *parts[i - 1], parts[i - 1]->norm.data(), bytes);
    part.stage.add_squares(part.norm.data());
  }
  last.stage.clipping.take_root(last.norm.data());
  for (const auto& part : parts) {
    if (part.get() != &last) copy(*part, part->norm.data(), last, last.norm.data(), bytes);
  }
  CUDA_CHECK(cudaMemcpyAsync(norm, first.norm.data(), bytes, cudaMemcpyDeviceToDevice, first.stream));
}

void update_parts(Parts& parts, Training& training) {
  if (parts.front()->stage.clipping.enabled()) find_norm(parts, training.losses().gradient_norm());
  for (const auto& one : parts) {
    Part& part = *one;
    ModelStage& stage = part.stage;
    const double lr_factor = training.lr_factor();
    // TODO 03.9: Update the part's parameters, on its device: part.step(part.norm.data(), lr_factor).
    //   Each part has its own optimizer, with the moments of its parameters.
    todo("03.9");
    // END TODO 03.9
    const OnDevice on_device(part.device);
    probe("03.9", {"parameters of ", part.name}, stage.model.values(), {stage.model.count()}, part.stream);
  }
}

// Computes the loss on the last device, where the predictions are. Training keeps the losses on the first device.
class LossOfLast {
 public:
  LossOfLast(Parts& parts, const Options& options, const DataSource& data) : parts_(parts) {
    if (parts.size() == 1) return;
    const OnDevice on_device(parts.back()->device);
    targets_ = DeviceBuffer<std::uint32_t>(
        static_cast<std::size_t>(options.batch_size) * (data.text != nullptr ? data.text->context : data.out),
        Memory::data);
    loss_ = DeviceBuffer<float>(1, Memory::data);
  }

  // Adds the batch's share of the mean loss over `samples_of_step` samples to *loss, and the share of right answers to
  // *batch.correct. Call it after forward_parts(). It copies both sums so far to the last device and back.
  void add(const Batch& batch, int samples_of_step, float* loss) {
    probe("03.I", "samples in the loss", std::array{samples_of_step});
    probe("03.I", "given to loss.add: samples that the last part has computed",
          std::array{parts_.back()->stage.activations.samples});
    Part &first = *parts_.front(), &last = *parts_.back();
    const OnDevice on_device(last.device);
    if (&first == &last) return last.stage.loss(batch.y, samples_of_step, loss);
    copy(last, targets_.data(), first, batch.y, batch.samples * batch.y_bytes);
    copy(last, loss_.data(), first, loss, sizeof(float));
    if (batch.correct != nullptr) copy(last, last.correct.data(), first, batch.correct, sizeof(float));
    last.stage.loss(targets_.data(), samples_of_step, loss_.data());
    copy(first, loss, last, loss_.data(), sizeof(float));
    if (batch.correct != nullptr) copy(first, batch.correct, last, last.correct.data(), sizeof(float));
  }

 private:
  Parts& parts_;
  DeviceBuffer<std::uint32_t> targets_;  // floats or tokens
  DeviceBuffer<float> loss_;
};

// Makes the first part's stream wait for all parts, because Training works and saves checkpoints on it, and makes its
// device current.
void join(Parts& parts) {
  for (const auto& part : parts) {
    CUDA_CHECK(cudaEventRecord(part->done, part->stream));
    CUDA_CHECK(cudaStreamWaitEvent(parts[0]->stream, part->done));
  }
  CUDA_CHECK(cudaSetDevice(parts[0]->device));
}

template <typename Do>
void on_each(Parts& parts, const Do& action) {
  for (const auto& part : parts) {
    const OnDevice on_device(part->device);
    action(*part);
  }
}

void print_parts(Parts& parts, const std::vector<int>& bounds) {
  print0("device  layers     parameters  idle\n");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double idle = parts[i]->stage.clock.idle_share();
    record_value("idle share of part " + std::to_string(i), idle);
    print0("%6d  %3d to %-3d %10d  %3.0f %%\n", parts[i]->device, bounds[i], bounds[i + 1] - 1,
           parts[i]->stage.model.count(), 100 * idle);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("03_model_parallel/one_process", "Trains a model whose layers one process spreads over devices.");
  std::string partition;
  options.devices = 2;
  options.add("--devices", options.devices, "devices that the layers are spread over", 1, 1024);
  add_partition(options, partition, "devices");
  options.with_models();
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("full");
  options.parse(argc, argv);
  const Network network = make_network(options);
  require_layers(options, network, options.devices, "device");
  Job job(options);
  if (job.world() != 1) {
    usage_error("one_process is one process for all devices; it was started on %d ranks. model_parallel takes several",
                job.world());
  }
  const Partition how = partition_of(partition, options);
  const std::vector<int> bounds = partition_layers(network.counts(), options.devices, how);
  probe(how == Partition::uniform ? "03.1" : "03.2", "first layer of each rank, and the number of layers", bounds);

  enable_peer_access(job.own_devices());
  Parts parts = place_parts(network, bounds, options, job.own_devices());
  CUDA_CHECK(cudaSetDevice(parts[0]->device));
  LossOfLast loss(parts, options, network.data());

  Training training(options, job, {}, network.data(), parts[0]->stream);
  for (const auto& part : parts) {
    const ModelStage& stage = part->stage;
    add_all(training, stage.model, part->stage.optimizer);
  }

  const auto add_loss = [&](const Batch& batch, float* sum) {
    const OnDevice on_device(parts[0]->device);  // restores the current device afterwards
    forward_parts(parts, batch);
    loss.add(batch, training.evaluated(), sum);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      on_each(parts, [](auto& part) { part.stage.clock.next_step(); });
      const Batch batch = training.batch();
      forward_parts(parts, batch);
      loss.add(batch, batch.samples, training.loss());
      backward_parts(parts, batch.samples);
      update_parts(parts, training);
      join(parts);
    }
    on_each(parts, [](auto& part) { part.stage.clock.stop(); });
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  on_each(parts, [](auto& part) { record_parameters(part.stage.model, 0, part.stream); });
  print_parts(parts, bounds);
}
