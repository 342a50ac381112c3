// SPDX-License-Identifier: Apache-2.0
// One stage of a pipeline: its chunks of the model, and buffers for all micro-batches that are in flight at once. Their
// number follows from the schedule, so the constructor allocates everything.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "04_pipeline/schedule.h"
#include "common/base/check.h"
#include "common/data/batch.h"
#include "model/deferred_weights.h"
#include "model/model.h"

namespace workshop {

// ---- buffers -------------------------------------------------------------------------------------------------------

// Buffers that the micro-batches of a chunk share, and the number of each micro-batch's buffer.
template <typename Buffer>
struct Pool {
  std::vector<int> place;  // indexed by micro-batch: its buffer; -1 if it needs none
  std::vector<Buffer> buffers;

  // Makes as many buffers as the places need.
  template <typename Make>
  void fill(const std::vector<int>& places, const Make& make) {
    place = places;
    const int count = *std::max_element(place.begin(), place.end()) + 1;
    while (static_cast<int>(buffers.size()) < count) buffers.push_back(make());
  }
  Buffer& operator[](int micro_batch) { return buffers[place[micro_batch]]; }
  const Buffer& operator[](int micro_batch) const { return buffers[place[micro_batch]]; }
};

// Two buffers for results on their way to another stage: one is sent while the next result is computed.
using SendBuffers = std::vector<DeviceBuffer<Real>>;

// One part of the model that a stage holds, with its buffers.
struct ModelChunk {
  ModelChunk(const Network& network, LayerRange layers, int max_samples, Storage storage, cudaStream_t stream)
      : model(network, max_samples, stream, layers, storage),
        is_first(layers.first == 0),
        is_last(layers.last == network.depth()) {}

  Model model;
  bool is_first, is_last;           // holds the first or last layer of the model
  Pool<DeviceBuffer<Real>> inputs;  // received, kept for the backward; assign_buffers() chooses the buffer of each
  Pool<Activations> activations;
  Pool<DeviceBuffer<Real>> gradients;            // gradients of the output, received
  SendBuffers outputs;                           // only with recomputation, when `activations` do not keep them
  SendBuffers input_gradients;                   // on their way down
  std::vector<Real*> output, input_gradient;     // indexed by micro-batch: the data to send
  Pool<DeferredWeights> later;                   // if backwards are split: what they leave for `weights`
  int forwards = 0, backwards = 0, weights = 0;  // enqueued so far in this step
  bool weights_reordered = false;                // the first `weights` is not for the first backward's micro-batch
};

// ---- the stage -----------------------------------------------------------------------------------------------------

class PipelineStage {
 public:
  // Part i has the layers [bounds[i], bounds[i + 1]). The number of micro-batches must divide `batch_size`. With
  // `recompute`, a forward keeps only the chunk's input, and the backward repeats the forward.
  PipelineStage(const Network& network, int batch_size, const Schedule& schedule, int stage,
                const std::vector<int>& bounds, bool recompute, cudaStream_t stream, Storage storage = Storage::own)
      : micro_batches_(schedule.micro_batches),
        recompute_(recompute),
        splits_backward_(schedule.splits_backward),
        stream_(stream),
        slices_(schedule.micro_batches) {
    const int stages = static_cast<int>(schedule.lists.size());
    if (stage >= stages) fail(1, "this is stage %d of a pipeline whose last stage is %d", stage, stages - 1);
    const int samples = batch_size / micro_batches_;
    for (int c = 0; c < schedule.chunks; ++c) {
      const int part = schedule.part(stage, c);
      ModelChunk& chunk =
          chunks_.emplace_back(network, LayerRange{bounds[part], bounds[part + 1]}, samples, storage, stream);
      make_buffers(chunk, schedule.lists[stage], c, samples);
    }
  }

  // Starts a step. The first part of the model reads batch.x, the last part batch.y; the batch's loss is added to
  // *loss.
  void begin_step(const Batch& batch, float* loss) {
    batch_ = batch;
    loss_ = loss;
    for (ModelChunk& chunk : chunks_) chunk.forwards = chunk.backwards = chunk.weights = 0;
    for (int m = 0; m < micro_batches_; ++m) {
      int first = 0, samples = 0, mean_over = 0;
      // TODO 04.6: Cut micro-batch m out of the batch, and set mean_over: over how many samples is its loss a mean?
      //   Set `first`, its first sample in the batch, and `samples`, how many it has. The last batch of an epoch may be
      //   short: the sizes may then differ by one, and the earlier micro-batches get the extra samples. The losses and
      //   gradients of all micro-batches must add up to the mean loss over all batch.samples samples and its gradients.
      todo("04.6");
      // END TODO 04.6
      slices_[m] = {first, samples, mean_over};
    }
    probe_step(batch, loss);
  }

  void forward(const Instruction& i) {
    const int m = i.micro_batch;
    ModelChunk& chunk = chunks_[i.chunk];
    probe_given("04.G", "forward", i, chunk.is_first ? nullptr : chunk.inputs[m].data());
    const Range range("forward " + std::to_string(m), stream_);
    const Real* output = compute_forward(chunk, m);
    if (!chunk.outputs.empty()) {  // the next forward overwrites this output, perhaps before it is sent
      Real* copy = chunk.outputs[chunk.forwards % 2].data();
      copy_to(copy, output, micro_batch(m).samples * chunk.model.output_size());
      output = copy;
    }
    chunk.output[m] = const_cast<Real*>(output);
    ++chunk.forwards;
    probe_result("04.G", "output", m, chunk.output[m], chunk.outputs, chunk.model.output_size());
  }

  // Adds a micro-batch's share of the mean loss over `samples_of_mean` samples to the step's loss. Call it after the
  // forward of the model's last part if no backward follows: a backward adds the loss itself.
  void add_loss(const Instruction& i, int samples_of_mean) {
    ModelChunk& chunk = chunks_[i.chunk];
    chunk.model.loss(chunk.activations[i.micro_batch], micro_batch(i.micro_batch).y, samples_of_mean, loss_);
  }

  // Enqueues a backward. In the last one of a step, calls ready(chunk, layer) for each layer as soon as the work for
  // its gradients is enqueued, unless the schedule splits backwards: then weights() does.
  void backward(const Instruction& i, const std::function<void(int, int)>& ready) {
    const int m = i.micro_batch;
    ModelChunk& chunk = chunks_[i.chunk];
    probe_given("04.H", "backward", i, chunk.is_last ? nullptr : chunk.gradients[m].data(), ready != nullptr);
    // The first `weights` of a step overwrites the gradients of the step before. In a short batch, it may have no
    // samples and overwrite nothing, so the gradients are cleared here.
    if (chunk.weights_reordered && chunk.backwards == 0 && slices_.back().samples == 0) {
      CUDA_CHECK(cudaMemsetAsync(chunk.model.grads(), 0, chunk.model.count() * sizeof(Real), stream_));
    }
    const Range range("backward " + std::to_string(m), stream_);
    Model& model = chunk.model;
    const Batch batch = micro_batch(m);
    if (recompute_) compute_forward(chunk, m);
    if (chunk.is_last) {
      model.loss(chunk.activations[m], batch.y, slices_[m].mean_over, loss_);
    } else {
      copy_to(model.output_gradient(), chunk.gradients[m].data(), batch.samples * model.output_size());
    }
    if (!chunk.is_first) chunk.input_gradient[m] = chunk.input_gradients[chunk.backwards % 2].data();
    // The first backward of a step overwrites the gradients of the step before; the others add to them. Which
    // micro-batch comes first depends on the schedule.
    const bool accumulate = chunk.backwards > 0;
    const auto layer_done = [&](int layer) {
      if (!splits_backward_ && chunk.backwards == micro_batches_ - 1) ready(i.chunk, layer);
    };
    if (batch.samples > 0 && splits_backward_) {
      model.backward(chunk.activations[m], accumulate, chunk.later[m], chunk.input_gradient[m]);
    } else if (batch.samples > 0) {
      model.backward(chunk.activations[m], accumulate, layer_done, chunk.input_gradient[m]);
    } else {  // in a short batch: nothing to add
      if (!accumulate) CUDA_CHECK(cudaMemsetAsync(model.grads(), 0, model.count() * sizeof(Real), stream_));
      for (int layer = model.depth() - 1; layer >= 0; --layer) layer_done(layer);
    }
    ++chunk.backwards;
    if (!chunk.is_first) {
      probe_result("04.H", "gradient of the input", m, chunk.input_gradient[m], chunk.input_gradients,
                   chunk.model.input_size());
    }
    probe_gradients(chunk, m);
  }

  // Enqueues what the backward of the micro-batch has left: the gradients of the weights. In the last one of a step,
  // calls ready(chunk, layer) for each layer as soon as the work for its gradients is enqueued.
  void weights(const Instruction& i, const std::function<void(int, int)>& ready) {
    const int m = i.micro_batch;
    ModelChunk& chunk = chunks_[i.chunk];
    probe("04.L", "given to stage_.weights: micro-batch, chunk and whether there is a ready()",
          std::array{i.micro_batch, i.chunk, int{ready != nullptr}});
    const Range range("weights " + std::to_string(m), stream_);
    Model& model = chunk.model;
    // TODO 04.10: Compute what the backward of micro-batch m has left, and call ready() for each layer that is final.
    //   model.backward(chunk.later[m], accumulate, layer_done) computes it and calls layer_done(layer) behind each
    //   layer. chunk.weights counts the earlier calls of this function in this step. As in backward(), the first call
    //   overwrites the gradients of the step before, and the others add to them. ready(i.chunk, layer) starts to
    //   average the gradients of a layer over other ranks: in which call may it do that?
    todo("04.10");
    // END TODO 04.10
    ++chunk.weights;
    probe_weights(chunk, m);
  }

  // Returns the buffer that a message is sent from or received into.
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
  // Returns the length of a message, in Reals.
  int message_size(const Instruction& i) const {
    const Model& model = chunks_[i.chunk].model;
    const bool above = i.kind == Instruction::send_activation || i.kind == Instruction::receive_gradient;
    return micro_batch(i.micro_batch).samples * (above ? model.output_size() : model.input_size());
  }

  std::deque<ModelChunk>& chunks() { return chunks_; }

 private:
  // A micro-batch: the samples [first, first + samples) of the batch. Its loss is the sum over them, divided by
  // mean_over.
  struct Slice {
    int first, samples, mean_over;
  };

  void make_buffers(ModelChunk& chunk, const std::vector<Instruction>& list, int number, int samples) const {
    Instruction::Kind last_use = Instruction::backward;
    if (splits_backward_) {
      // TODO 04.9: Set last_use: which instruction is the last that needs the activations of a micro-batch?
      //   It is the kind of an instruction. When it is done, the next forward may overwrite the micro-batch's input and
      //   activations. What do the gradients of the weights, dW = dYᵀ X, need?
      todo("04.9");
      // END TODO 04.9
      probe("04.9", "kind of the instruction after which activations may be overwritten",
            std::array{static_cast<int>(last_use)});
    }
    const auto assign = [&](Instruction::Kind takes) {
      return assign_buffers(list, micro_batches_, number, takes, last_use);
    };
    const auto buffer = [samples](int size, Memory kind) {
      return [=] { return DeviceBuffer<Real>(samples * size, kind); };
    };
    const int in = chunk.model.input_size(), out = chunk.model.output_size();
    const std::vector<int> inputs = assign(Instruction::receive_activation);
    const std::vector<int> forwards = assign(Instruction::forward);
    const std::vector<int> one_at_a_time(micro_batches_, 0);
    const std::vector<int> gradients =
        assign_buffers(list, micro_batches_, number, Instruction::receive_gradient, Instruction::backward);
    chunk.activations.fill(recompute_ ? one_at_a_time : forwards, [&] { return chunk.model.make_activations(); });
    chunk.inputs.fill(inputs, buffer(in, Memory::activations));
    chunk.gradients.fill(gradients, buffer(out, Memory::buckets));
    if (splits_backward_) {
      const auto first = [&](Instruction::Kind kind) {
        return std::ranges::find_if(list, [&](const auto& i) { return i.kind == kind && i.chunk == number; });
      };
      chunk.weights_reordered = first(Instruction::weights)->micro_batch != first(Instruction::backward)->micro_batch;
      chunk.later.fill(assign_buffers(list, micro_batches_, number, Instruction::backward, Instruction::weights),
                       [&] { return chunk.model.make_deferred(); });
    }
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

  void copy_to(Real* to, const Real* from, int count) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(Real), cudaMemcpyDeviceToDevice, stream_));
  }

  // ---- what the checker records ----

  void probe_step(const Batch& batch, const float* loss) const {
    if (!probing()) return;
    std::vector<int> numbers;
    for (const Slice& slice : slices_) numbers.insert(numbers.end(), {slice.first, slice.samples, slice.mean_over});
    probe("04.6", "first sample, number of samples and samples of the mean of each micro-batch", numbers);
    probe("04.F", "samples of the batch, whether x is kept, whether y is kept and whether the loss is kept",
          std::array{batch_.samples, int{batch_.x == batch.x}, int{batch_.y == batch.y}, int{loss_ == loss}});
    numbers.clear();
    for (const ModelChunk& chunk : chunks_) {
      numbers.insert(numbers.end(), {chunk.forwards, chunk.backwards, chunk.weights});
    }
    probe("04.F", "forwards so far, backwards so far and weights so far of each chunk", numbers);
  }

  // What step() of the executor passes on to forward() or backward(). The input must have arrived by then.
  void probe_given(const char* region, const char* function, const Instruction& i, const Real* input,
                   bool has_ready = false) const {
    if (!probing()) return;
    const std::string name = std::string("given to stage_.") + function + ": ";
    const Model& model = chunks_[i.chunk].model;
    const int size = i.kind == Instruction::forward ? model.input_size() : model.output_size();
    if (input != nullptr) {
      probe("04.I", {name, "what was received"}, input, {micro_batch(i.micro_batch).samples, size}, stream_);
    }
    probe(region, {name, "micro-batch, chunk and whether there is a ready()"},
          std::array{i.micro_batch, i.chunk, int{has_ready}});
  }

  // What is sent on, and where it lies.
  void probe_result(const char* region, const char* name, int m, const Real* result, const SendBuffers& buffers,
                    int size) const {
    if (!probing()) return;
    const std::string of = " of micro-batch " + std::to_string(m);
    const bool in_buffer = std::any_of(buffers.begin(), buffers.end(),
                                       [&](const DeviceBuffer<Real>& buffer) { return buffer.data() == result; });
    probe(region, std::string(name) + of + ": whether its place is known and whether that is a send buffer",
          std::array{int{result != nullptr}, int{in_buffer}});
    if (result != nullptr) probe(region, {name, of}, result, {micro_batch(m).samples, size}, stream_);
  }

  void probe_gradients(const ModelChunk& chunk, int m) const {
    // In the last backward, ready() may have started to average the gradients.
    if (!probing() || splits_backward_ || chunk.backwards == micro_batches_) return;
    probe("04.H", "gradients of the parameters after micro-batch " + std::to_string(m), chunk.model.grads(),
          {chunk.model.count()}, stream_);
  }

  void probe_weights(const ModelChunk& chunk, int m) const {
    if (!probing()) return;
    const std::string after = " after micro-batch " + std::to_string(m);
    probe("04.10", "1 if something is left" + after, std::array{int{!chunk.later[m].empty()}});
    if (chunk.weights == micro_batches_) return;  // ready() may have started to average them
    probe("04.10", "gradients of the parameters" + after, chunk.model.grads(), {chunk.model.count()}, stream_);
  }

  Batch micro_batch(int m) const { return batch_.slice(slices_[m].first, slices_[m].samples); }

  int micro_batches_;
  bool recompute_, splits_backward_;
  cudaStream_t stream_;
  std::vector<Slice> slices_;  // indexed by micro-batch
  std::deque<ModelChunk> chunks_;
  Batch batch_;
  float* loss_ = nullptr;
};

}  // namespace workshop
