// SPDX-License-Identifier: Apache-2.0
// Model parallelism as handbooks show it first: one process, which puts layer after layer on device after device. What
// model_parallel sends is copied here, and events say when. It takes no second process, and has no use for one.
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/models.h"
#include "common/data/dataset.h"
#include "common/job.h"
#include "common/training.h"
#include "partition.h"
#include "stage.h"

using namespace workshop;

namespace {

// Layers on one device: the one that is current when they are made.
struct Part {
  Part(const Network& network, LayerRange layers, const Options& options, int number)
      : stage(network, layers, options, stream, {"part " + std::to_string(number), "03.7", "03.8", "03.9"}),
        norm(options.needs_norm() ? 1 : 0, Memory::data),
        correct(network.images != nullptr ? 1 : 0, Memory::data) {}

  const int device = current_device();
  Stream stream;
  Event done;  // recorded on the stream behind work that another part waits for
  Stage stage;
  DeviceBuffer<float> norm;     // of the whole model's gradient, where one is needed
  DeviceBuffer<float> correct;  // the share of right answers, on the last part, where it is asked for
};
using Parts = std::vector<std::unique_ptr<Part>>;

// Part i is on device i; where there are fewer devices, they are dealt out in turns.
Parts place_parts(const Network& network, const std::vector<int>& bounds, const Options& options, int devices) {
  Parts parts;
  const int count = static_cast<int>(bounds.size()) - 1;
  for (int i = 0; i < count; ++i) {
    const LayerRange layers{bounds[i], bounds[i + 1]};
    const int device = i % devices;
    // TODO 03.6: Make part i on its device, and put it behind the others in `parts`.
    //   What a program allocates or creates belongs to the device that is current: cudaSetDevice(device). A part is
    //   made by std::make_unique<Part>(network, layers, options, i).
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

// Copies bytes from one part to another, behind all that is enqueued on the first one's stream, and before all that is
// yet to be enqueued on the second one's.
void copy(Part& to, void* target, Part& from, const void* source, std::size_t bytes) {
  // TODO 03.7: Copy from device to device, on the stream of `to`, when the stream of `from` has come this far.
  //   Record from.done, let to.stream wait for it, and copy: cudaMemcpyPeerAsync(to, its device, from, its device,
  //   bytes, stream). The memory is at `target` and `source`; part.device is a part's device.
  todo("03.7");
  // END TODO 03.7
}

// Forward: the samples are on the first device, the predictions come out on the last.
void forward(Parts& parts, const Batch& batch) {
  const void* x = batch.x;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    Stage& stage = part.stage;
    CUDA_CHECK(cudaSetDevice(part.device));  // kernels are launched on streams of the current device only
    stage.batch = batch;
    if (i > 0) {
      if (batch.correct != nullptr) stage.batch.correct = part.correct.data();
      copy(part, stage.received.data(), *parts[i - 1], x, batch.samples * stage.in * sizeof(Real));
      x = stage.received.data();
    }
    x = stage.forward(x, batch.samples);
  }
}

// Backward: the last part has the gradient of its output from the loss already.
void backward(Parts& parts, int rows) {
  const int last = static_cast<int>(parts.size()) - 1;
  for (int i = last; i >= 0; --i) {
    Part& part = *parts[i];
    Stage& stage = part.stage;
    Real* gradient = stage.model.output_gradient();
    Real* dx = i > 0 ? stage.input_gradient.data() : nullptr;
    // TODO 03.8: Get the gradient of this part's output from part i + 1, if there is one, and compute, on part.device.
    //   There it is stage.input_gradient.data() of that part; here it belongs to `gradient`, [rows, stage.out] Reals.
    //   copy() is above, stage.backward(rows, dx) as in TODO 03.4; forward() shows what else to think of.
    todo("03.8");
    // END TODO 03.8
    const OnDevice on_device(part.device);
    probe("03.8", {"gradient of ", stage.probes.name}, stage.model.grads(), {stage.model.count()}, part.stream);
  }
}

// The norm of the whole gradient, on every device and in *norm on the first: each part adds its squares to what comes
// from the part before.
void find_norm(Parts& parts, float* norm) {
  if (norm == nullptr) return;
  Part &first = *parts.front(), &last = *parts.back();
  const std::size_t bytes = sizeof(float);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    CUDA_CHECK(cudaSetDevice(part.device));
    if (i == 0) CUDA_CHECK(cudaMemsetAsync(part.norm.data(), 0, bytes, part.stream));
    if (i > 0) copy(part, part.norm.data(), *parts[i - 1], parts[i - 1]->norm.data(), bytes);
    part.stage.add_squares(part.norm.data());
  }
  last.stage.clipping.finish(last.norm.data(), {});
  for (const auto& part : parts) {
    if (part.get() != &last) copy(*part, part->norm.data(), last, last.norm.data(), bytes);
  }
  CUDA_CHECK(cudaMemcpyAsync(norm, first.norm.data(), bytes, cudaMemcpyDeviceToDevice, first.stream));
}

void update(Parts& parts, Training& training) {
  find_norm(parts, training.losses().gradient_norm());
  for (const auto& one : parts) {
    Part& part = *one;
    Stage& stage = part.stage;
    const double lr_factor = training.lr_factor();
    // TODO 03.9: Update the part's parameters, on its device: stage.step(part.norm.data(), lr_factor).
    //   Each part has an optimizer of its own, with the moments of its parameters.
    todo("03.9");
    // END TODO 03.9
    const OnDevice on_device(part.device);
    probe("03.9", {"parameters of ", stage.probes.name}, stage.model.values(), {stage.model.count()}, part.stream);
  }
}

// What Training has for the loss and the right answers is on the first device, and the predictions are on the last.
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

  // Adds the batch's share of the mean over `samples_of_step` samples to *loss, behind forward(), and that of the right
  // answers to *batch.correct. What they are so far goes to the last device and comes back.
  void add(const Batch& batch, int samples_of_step, float* loss) {
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

// The first part's stream, on which Training works and saves checkpoints, goes on when all parts have come this far;
// its device is current.
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

void report(Parts& parts, const std::vector<int>& bounds) {
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

  Parts parts = place_parts(network, bounds, options, job.own_devices());
  CUDA_CHECK(cudaSetDevice(parts[0]->device));
  LossOfLast loss(parts, options, network.data());

  Training training(options, job, {}, network.data(), parts[0]->stream);
  for (const auto& part : parts) {
    const Stage& stage = part->stage;
    add_all(training, stage.model, part->stage.optimizer);
  }

  const auto add_loss = [&](const Batch& batch, float* sum) {
    const OnDevice on_device(parts[0]->device);  // again, afterwards
    forward(parts, batch);
    loss.add(batch, training.evaluated(), sum);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      on_each(parts, [](auto& part) { part.stage.clock.next_step(); });
      const Batch batch = training.batch();
      forward(parts, batch);
      loss.add(batch, batch.samples, training.loss());
      backward(parts, batch.samples);
      update(parts, training);
      join(parts);
    }
    on_each(parts, [](auto& part) { part.stage.clock.stop(); });
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  on_each(parts, [](auto& part) { record_parameters(part.stage.model, 0, part.stream); });
  report(parts, bounds);
}
