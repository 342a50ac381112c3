// SPDX-License-Identifier: Apache-2.0
// One stage of a pipeline: its chunks of the model, and buffers for all micro-batches that are in flight at once. How
// many those are the schedule says, so nothing is allocated after the constructor.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "04_pipeline/schedule.h"
#include "common/base/check.h"
#include "common/data/batch.h"
#include "model/model.h"

namespace workshop {

// ---- buffers -------------------------------------------------------------------------------------------------------

// Buffers that the micro-batches of a chunk share, and which buffer each micro-batch has.
template <typename Buffer>
struct Pool {
  std::vector<int> place;  // of each micro-batch; -1 if it needs no buffer
  std::vector<Buffer> buffers;

  // As many buffers as the places ask for.
  template <typename Make>
  void fill(const std::vector<int>& places, const Make& make) {
    place = places;
    const int count = *std::max_element(place.begin(), place.end()) + 1;
    while (static_cast<int>(buffers.size()) < count) buffers.push_back(make());
  }
  Buffer& operator[](int micro_batch) { return buffers[place[micro_batch]]; }
  const Buffer& operator[](int micro_batch) const { return buffers[place[micro_batch]]; }
};

// Results on their way to another stage, which take turns: one is sent while the next one is computed.
using SendBuffers = std::vector<DeviceBuffer<Real>>;

// One of the parts of the model that a stage holds, with its buffers.
struct ModelChunk {
  ModelChunk(const Network& network, LayerRange layers, int max_samples, Storage storage, cudaStream_t stream)
      : model(network, max_samples, stream, layers, storage),
        is_first(layers.first == 0),
        is_last(layers.last == network.depth()) {}

  Model model;
  bool is_first, is_last;           // of the whole model
  Pool<DeviceBuffer<Real>> inputs;  // received, kept for the backward
  Pool<Activations> activations;
  Pool<DeviceBuffer<Real>> gradients;         // of the output, received
  SendBuffers outputs;                        // where `activations` do not hold them until they are sent
  SendBuffers input_gradients;                // on their way down
  std::vector<Real*> output, input_gradient;  // of each micro-batch: what is to be sent
  int forwards = 0, backwards = 0;            // of this step so far
};

// ---- the stage -----------------------------------------------------------------------------------------------------

class PipelineStage {
 public:
  // Part p has the layers [bounds[p], bounds[p + 1]). The schedule's micro-batches must divide the batch size.
  // `recompute`: a forward keeps only the chunk's input, and its backward repeats the forward.
  PipelineStage(const Network& network, int batch_size, const Schedule& schedule, int stage,
                const std::vector<int>& bounds, bool recompute, cudaStream_t stream, Storage storage = Storage::own)
      : micro_batches_(schedule.micro_batches),
        recompute_(recompute),
        stream_(stream),
        slices_(schedule.micro_batches) {
    const int stages = static_cast<int>(schedule.lists.size());
    if (stage >= stages) fail(1, "this is stage %d of a pipeline whose last one is %d", stage, stages - 1);
    const int samples = batch_size / micro_batches_;
    for (int c = 0; c < schedule.chunks; ++c) {
      const int part = schedule.part(stage, c);
      ModelChunk& chunk =
          chunks_.emplace_back(network, LayerRange{bounds[part], bounds[part + 1]}, samples, storage, stream);
      make_buffers(chunk, schedule.lists[stage], c, samples);
    }
  }

  // Begins a step, with a batch of which the first part reads x and the last part y. Its loss is added to *loss.
  void begin_step(const Batch& batch, float* loss) {
    batch_ = batch;
    loss_ = loss;
    for (ModelChunk& chunk : chunks_) chunk.forwards = chunk.backwards = 0;
    std::vector<int> numbers;
    for (int m = 0; m < micro_batches_; ++m) {
      int first = 0, samples = 0, mean_over = 0;
      // TODO 04.6: Cut micro-batch m out of the batch, and set mean_over: over how many samples is its loss a mean?
      //   It has `samples` of the batch's samples, from number `first` on. The last batch of an epoch may be short: the
      //   numbers of samples then differ by at most one, and the earlier micro-batches have one more. What comes out is
      //   added up over the micro-batches, the losses as well as the gradients: all together must be the mean over the
      //   batch.samples samples.
      const int each = batch.samples / micro_batches_, left_over = batch.samples % micro_batches_;
      first = m * each + std::min(m, left_over);
      samples = each + (m < left_over ? 1 : 0);
      mean_over = batch.samples;
      // END TODO 04.6
      slices_[m] = {first, samples, mean_over};
      numbers.insert(numbers.end(), {first, samples, mean_over});
    }
    probe("04.6", "first sample, number of samples and samples of the mean of each micro-batch", numbers);
  }

  void forward(const Instruction& i) {
    const Range range("forward " + std::to_string(i.micro_batch), stream_);
    ModelChunk& chunk = chunks_[i.chunk];
    const Real* output = compute_forward(chunk, i.micro_batch);
    if (!chunk.outputs.empty()) {  // the next forward overwrites what this one has, perhaps before it is sent
      Real* copy = chunk.outputs[chunk.forwards % 2].data();
      copy_to(copy, output, micro_batch(i.micro_batch).samples * chunk.model.output_size());
      output = copy;
    }
    chunk.output[i.micro_batch] = const_cast<Real*>(output);
    ++chunk.forwards;
  }

  // Adds the share of a micro-batch in a mean over `samples_of_mean` samples to the step's loss, after a forward of the
  // model's last part that no backward follows.
  void add_loss(const Instruction& i, int samples_of_mean) {
    ModelChunk& chunk = chunks_[i.chunk];
    chunk.model.loss(chunk.activations[i.micro_batch], micro_batch(i.micro_batch).y, samples_of_mean, loss_);
  }

  // Calls ready(chunk, layer) once per step for each layer, when the work for its gradients is enqueued.
  void backward(const Instruction& i, const std::function<void(int, int)>& ready) {
    const Range range("backward " + std::to_string(i.micro_batch), stream_);
    ModelChunk& chunk = chunks_[i.chunk];
    if (!chunk.is_first) {
      chunk.input_gradient[i.micro_batch] = chunk.input_gradients[chunk.backwards % 2].data();
    }
    compute_backward(chunk, i, [&](int layer) {
      if (ready && chunk.backwards == micro_batches_ - 1) ready(i.chunk, layer);
    });
    ++chunk.backwards;
  }

  // Where a message comes from or goes to, and its length, a number of Reals.
  Real* message(const Instruction& i) const {
    const ModelChunk& chunk = chunks_[i.chunk];
    const int m = i.micro_batch;
    switch (i.kind) {
      case Instruction::send_activation:
        return chunk.output[m];
      case Instruction::receive_activation:
        return chunk.inputs[m].data();
      case Instruction::send_gradient:
        return chunk.input_gradient[m];
      case Instruction::receive_gradient:
        return chunk.gradients[m].data();
      default:
        return nullptr;
    }
  }
  int message_size(const Instruction& i) const {
    const Model& model = chunks_[i.chunk].model;
    const bool above = i.kind == Instruction::send_activation || i.kind == Instruction::receive_gradient;
    return micro_batch(i.micro_batch).samples * (above ? model.output_size() : model.input_size());
  }

  std::deque<ModelChunk>& chunks() { return chunks_; }

 private:
  // A micro-batch: `samples` of the batch's samples, from number `first` on. Its loss is a mean over mean_over samples.
  struct Slice {
    int first, samples, mean_over;
  };

  void make_buffers(ModelChunk& chunk, const std::vector<Instruction>& list, int number, int samples) const {
    const auto assign = [&](Instruction::Kind takes) {
      return assign_buffers(list, micro_batches_, number, takes, Instruction::backward);
    };
    const auto buffer = [samples](int size, Memory kind) {
      return [=] { return DeviceBuffer<Real>(samples * size, kind); };
    };
    const int in = chunk.model.input_size(), out = chunk.model.output_size();
    const std::vector<int> inputs = assign(Instruction::receive_activation);
    const std::vector<int> forwards = assign(Instruction::forward);
    const std::vector<int> one_at_a_time(micro_batches_, 0);
    const std::vector<int> gradients = assign(Instruction::receive_gradient);
    chunk.activations.fill(recompute_ ? one_at_a_time : forwards, [&] { return chunk.model.make_activations(); });
    chunk.inputs.fill(inputs, buffer(in, Memory::activations));
    chunk.gradients.fill(gradients, buffer(out, Memory::buckets));
    for (int slot = 0; slot < 2; ++slot) {
      if (recompute_ && !chunk.is_last) chunk.outputs.push_back(buffer(out, Memory::buckets)());
      if (!chunk.is_first) chunk.input_gradients.push_back(buffer(in, Memory::buckets)());
    }
    chunk.output.resize(micro_batches_);
    chunk.input_gradient.resize(micro_batches_);
  }

  const Real* compute_forward(ModelChunk& chunk, int m) {
    const Batch batch = micro_batch(m);
    const void* x = chunk.is_first ? batch.x : chunk.inputs[m].data();
    return chunk.model.forward(batch.with_x(x), chunk.activations[m]);
  }

  void compute_backward(ModelChunk& chunk, const Instruction& i, const std::function<void(int)>& ready) {
    const int m = i.micro_batch;
    const Batch batch = micro_batch(m);
    Model& model = chunk.model;
    if (recompute_) compute_forward(chunk, m);
    if (chunk.is_last) {
      model.loss(chunk.activations[m], batch.y, slices_[m].mean_over, loss_);
    } else {
      copy_to(model.output_gradient(), chunk.gradients[m].data(), batch.samples * model.output_size());
    }
    // The gradients of a step add up. Its first backward overwrites them: they still hold those of the last step. Which
    // micro-batch that is depends on the schedule.
    const bool accumulate = chunk.backwards > 0;
    if (batch.samples == 0) {  // of a short batch: nothing to add
      if (!accumulate) CUDA_CHECK(cudaMemsetAsync(model.grads(), 0, model.count() * sizeof(Real), stream_));
      for (int layer = model.depth() - 1; layer >= 0; --layer) ready(layer);
      return;
    }
    model.backward(chunk.activations[m], accumulate, ready, chunk.input_gradient[m]);
  }

  void copy_to(Real* to, const Real* from, int count) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(Real), cudaMemcpyDeviceToDevice, stream_));
  }

  Batch micro_batch(int m) const { return batch_.slice(slices_[m].first, slices_[m].samples); }

  int micro_batches_;
  bool recompute_;
  cudaStream_t stream_;
  std::vector<Slice> slices_;  // of each micro-batch
  std::deque<ModelChunk> chunks_;
  Batch batch_;
  float* loss_ = nullptr;
};

}  // namespace workshop
