// One stage of a pipeline: its parts of the model, and buffers for all micro-batches that are in flight at once. How
// many those are the schedule says, so nothing is allocated after the constructor.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "common/data.h"
#include "schedule.h"

namespace workshop {

// How a stage computes.
struct StageMode {
  bool recompute = false;          // a forward keeps the part's input alone, and its backward repeats the forward
  double milliseconds = 0;         // above 0: a forward or a backward waits for so long instead of computing
  Storage storage = Storage::own;  // of the parameters; `placed` by the caller before the first step
};

// One of the parts of the model that a stage holds, with its buffers. Where micro-batches share a pool, a vector<int>
// has the place of each.
template <typename Model>
struct PartOf {
  template <typename... Group>
  PartOf(const Options& options, int rows, int first_layer, int last_layer, Storage storage, cudaStream_t stream,
         const Group&... group)
      : in(options.layers[first_layer]),
        out(options.layers[last_layer]),
        model(options.layers, options.activation, rows, group..., stream, first_layer, last_layer, storage) {}

  int in, out;  // widths
  Model model;
  bool is_first = false, is_last = false;  // of the whole model
  std::vector<int> input_of, activations_of, gradient_of;
  std::vector<DeviceBuffer<float>> inputs;  // received, kept for the backward
  std::vector<Activations> activations;
  std::vector<DeviceBuffer<float>> gradients;        // of the output, received
  std::vector<DeviceBuffer<float>> outputs;          // on their way up, where `activations` do not hold them so long
  std::vector<DeviceBuffer<float>> input_gradients;  // on their way down
  std::vector<float*> output, input_gradient;        // of each micro-batch: what is to be sent
  int forwards = 0, backwards = 0;                   // of this step so far
};

// Model is chapter 01's Mlp, or one with the same methods whose layers are cut over a group of ranks.
template <typename Model>
class StageOf {
 public:
  using Part = PartOf<Model>;

  // Part p has the layers [bounds[p], bounds[p + 1]). The schedule's micro-batches must divide options.batch_size.
  // `group` is the Model's, if it has one.
  template <typename... Group>
  StageOf(const Options& options, const Schedule& schedule, int stage, const std::vector<int>& bounds, StageMode mode,
          cudaStream_t stream, const Group&... group)
      : micro_batches_(schedule.micro_batches),
        outputs_(options.layers.back()),
        mode_(mode),
        stream_(stream),
        elements_(schedule.micro_batches) {
    const int rows = options.batch_size / micro_batches_;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      const int p = schedule.part(stage, chunk);
      Part& part = parts_.emplace_back(options, rows, bounds[p], bounds[p + 1], mode.storage, stream, group...);
      part.is_first = p == 0;
      part.is_last = p == schedule.parts() - 1;
      make_buffers(part, schedule.lists[stage], chunk, rows);
    }
  }

  // Begins a step with a batch of which the first part reads x and the last one y. Its loss is added to *loss.
  void begin_step(const Batch& batch, float* loss) {
    batch_ = batch;
    loss_ = loss;
    for (Part& part : parts_) part.forwards = part.backwards = 0;
    for (int m = 0; m < micro_batches_; ++m) {
      // TODO 04.5: Over how many elements of the output is the mean that the loss of micro-batch m is a part of?
      //   The losses of the micro-batches are added up, and so are their gradients: the sum is to be the mean square
      //   over the whole batch. The batch has batch.rows rows, this micro-batch rows(m); a row has outputs_ elements.
      todo("04.5");
      // END TODO 04.5
    }
    probe("04.5", "elements of each micro-batch's mean", elements_);
  }

  void forward(const Instruction& i) {
    const Range range("forward " + std::to_string(i.micro_batch), stream_);
    Part& part = parts_[i.chunk];
    const float* output = compute_forward(part, i.micro_batch);
    if (!part.outputs.empty()) {
      float* copy = part.outputs[part.forwards % 2].data();
      copy_to(copy, output, rows(i.micro_batch) * part.out);
      output = copy;
    }
    part.output[i.micro_batch] = const_cast<float*>(output);
    ++part.forwards;
  }

  // `ready(chunk, layer)` is called once a step for each layer, when the work for its gradients is enqueued.
  void backward(const Instruction& i, const std::function<void(int, int)>& ready) {
    const Range range("backward " + std::to_string(i.micro_batch), stream_);
    Part& part = parts_[i.chunk];
    if (!part.is_first) {
      part.input_gradient[i.micro_batch] = part.input_gradients[part.backwards % 2].data();
    }
    if (mode_.milliseconds > 0) {
      wait();
    } else {
      compute_backward(part, i, [&](int layer) {
        if (ready && part.backwards == micro_batches_ - 1) ready(i.chunk, layer);
      });
    }
    ++part.backwards;
  }

  // Where a message comes from or goes to, and its length in floats.
  float* message(const Instruction& i) const {
    const Part& part = parts_[i.chunk];
    const int m = i.micro_batch;
    switch (i.kind) {
      case Instruction::send_activation:
        return part.output[m];
      case Instruction::receive_activation:
        return part.inputs[part.input_of[m]].data();
      case Instruction::send_gradient:
        return part.input_gradient[m];
      case Instruction::receive_gradient:
        return part.gradients[part.gradient_of[m]].data();
      default:
        return nullptr;
    }
  }
  int message_size(const Instruction& i) const {
    const Part& part = parts_[i.chunk];
    const bool above = i.kind == Instruction::send_activation || i.kind == Instruction::receive_gradient;
    return rows(i.micro_batch) * (above ? part.out : part.in);
  }

  std::deque<Part>& parts() { return parts_; }

 private:
  void make_buffers(Part& part, const std::vector<Instruction>& list, int chunk, int rows) {
    const auto assign = [&](Instruction::Kind takes) {
      return assign_buffers(list, micro_batches_, chunk, takes, Instruction::backward);
    };
    const auto pool = [](const std::vector<int>& places) {
      return *std::max_element(places.begin(), places.end()) + 1;
    };
    const auto fill = [rows](std::vector<DeviceBuffer<float>>& buffers, int count, int width, Memory kind) {
      while (static_cast<int>(buffers.size()) < count) buffers.emplace_back(rows * width, kind);
    };
    part.input_of = assign(Instruction::receive_activation);
    part.activations_of = assign(Instruction::forward);
    part.gradient_of = assign(Instruction::receive_gradient);
    if (mode_.recompute) part.activations_of.assign(micro_batches_, 0);  // one at a time
    for (int n = pool(part.activations_of); n > 0; --n) part.activations.push_back(part.model.make_activations());
    fill(part.inputs, pool(part.input_of), part.in, Memory::activations);
    fill(part.gradients, pool(part.gradient_of), part.out, Memory::buckets);
    // Of results on their way there are two: one is sent while the next is computed.
    fill(part.outputs, mode_.recompute && !part.is_last ? 2 : 0, part.out, Memory::buckets);
    fill(part.input_gradients, part.is_first ? 0 : 2, part.in, Memory::buckets);
    part.output.resize(micro_batches_);
    part.input_gradient.resize(micro_batches_);
  }

  const float* compute_forward(Part& part, int m) {
    Activations& activations = part.activations[part.activations_of[m]];
    if (mode_.milliseconds > 0) {
      wait();
      return activations.z.back().data();
    }
    const float* x = part.is_first ? batch_.x + first_row(m) * part.in : part.inputs[part.input_of[m]].data();
    return part.model.forward(x, rows(m), activations);
  }

  void compute_backward(Part& part, const Instruction& i, const std::function<void(int)>& ready) {
    const int m = i.micro_batch, n = rows(m);
    if (mode_.recompute) compute_forward(part, m);
    Activations& activations = part.activations[part.activations_of[m]];
    if (part.is_last) {
      part.model.loss(activations, batch_.y + first_row(m) * part.out, elements_[m], loss_);
    } else {
      copy_to(part.model.output_gradient(), message({Instruction::receive_gradient, m, i.chunk}), n * part.out);
    }
    bool accumulate = false;
    // TODO 04.6: Does this backward add to the gradients of the parameters, or overwrite them?
    //   They still hold those of the last step. part.backwards counts the part's backwards in this step so far.
    todo("04.6");
    // END TODO 04.6
    probe("04.6", "accumulate", std::vector<int>{accumulate});
    if (n == 0) {  // of a short batch: nothing to add
      const Model& model = part.model;
      if (!accumulate) CUDA_CHECK(cudaMemsetAsync(model.grads(), 0, model.count() * sizeof(float), stream_));
      for (int layer = model.depth() - 1; layer >= 0; --layer) ready(layer);
      return;
    }
    part.model.backward(activations, accumulate, ready, part.input_gradient[m]);
  }

  // Takes its time on the stream, as a kernel would, and no processor.
  void wait() {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream_,
        [](void* milliseconds) {
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(*static_cast<double*>(milliseconds)));
        },
        &mode_.milliseconds));
  }

  void copy_to(float* to, const float* from, int count) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
  }

  // Rows of a micro-batch. Those of a short batch, at an epoch's end, may differ by one.
  int rows(int m) const { return batch_.rows / micro_batches_ + (m < batch_.rows % micro_batches_ ? 1 : 0); }
  int first_row(int m) const { return m * (batch_.rows / micro_batches_) + std::min(m, batch_.rows % micro_batches_); }

  int micro_batches_, outputs_;
  StageMode mode_;
  cudaStream_t stream_;
  std::vector<int> elements_;  // of each micro-batch: those that its part of the loss is a mean over
  std::deque<Part> parts_;
  Batch batch_{};
  float* loss_ = nullptr;
};

using Part = PartOf<Mlp>;
using Stage = StageOf<Mlp>;

}  // namespace workshop
