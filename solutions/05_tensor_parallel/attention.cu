// SPDX-License-Identifier: Apache-2.0
// Trains one block of multi-head causal self-attention whose heads are cut over the ranks: attention.h has it.
//
// A sample of the data set is a sequence: --sequence positions of --width random numbers each, with a target likewise.
#include "01_single_gpu/optimizer.h"
#include "attention.h"
#include "common/job.h"
#include "common/training.h"
#include "gradient_check.h"
#include "tensor_parallel.h"
#include "shards.h"

using namespace workshop;

namespace {

// Compares the gradients of the parameters, and that of the input, with central differences of the loss of `batch`.
bool check_block(Model& model, Activations& activations, const Batch& batch, const Group& group, cudaStream_t stream) {
  const int size = batch.samples * model.input_size();
  require_floats();
  DeviceBuffer<Real> x(size, Memory::data), dx(size, Memory::data);
  DeviceBuffer<float> loss(1, Memory::data);
  CUDA_CHECK(cudaMemcpyAsync(x.data(), batch.x, x.bytes(), cudaMemcpyDeviceToDevice, stream));
  const auto loss_of_batch = [&]() -> double {
    CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));
    model.forward(batch.with_x(x.data()), activations);
    model.loss(activations, batch.y, batch.samples, loss.data());
    return loss.download(stream)[0];
  };
  loss_of_batch();
  model.backward(activations, /*accumulate=*/false, {}, dx.data());
  CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<Parameter> checked = model.parameters();
  checked.push_back({"input", {batch.samples, model.input_size()}, Split::none, 0, 1, x.data(), dx.data()});
  return check_gradients(checked, group, loss_of_batch, stream);
}

// Positions in the arrays of the parameters, the activations, the scores and the data set are ints.
void require_sizes(const Options& options, int sequence, int width, int heads) {
  require_product({{"4", 4}, {"--width", width}, {"--width + 1", width + 1}});
  require_product({{"3", 3}, {"--batch-size", options.batch_size}, {"--sequence", sequence}, {"--width", width}});
  require_product(
      {{"--batch-size", options.batch_size}, {"--heads", heads}, {"--sequence", sequence}, {"--sequence", sequence}});
  require_product({{"--samples", options.samples}, {"--sequence", sequence}, {"--width", width}});
}

}  // namespace

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/attention", "Trains causal self-attention with its heads cut over the ranks.");
  int sequence = 8, width = 16, heads = 4;
  bool gradient_check = false;
  options.without({"--layers", "--activation"});
  options.add("--sequence", sequence, "positions of a sample", 1);
  options.add("--width", width, "numbers a position", 1);
  options.add("--heads", heads, "attention heads; they divide the width, and the ranks divide them", 1);
  options.add_flag("--gradient-check", gradient_check, "compare the gradients with central differences, then train");
  options.shuffle = false;
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  if (width % heads != 0) usage_error("--width is '%d'; expected a multiple of the %d heads", width, heads);
  const int ranks = process_ranks().world;
  if (heads % ranks != 0) usage_error("--heads is '%d'; expected a multiple of the %d ranks", heads, ranks);
  require_sizes(options, sequence, width, heads);
  Job job(options);

  const Stream stream;
  const Network network = make_attention(sequence, width, heads, job.group());
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);

  Training training(options, job, {.reports = job.rank() == 0}, network.data(), stream);
  add_all(training, model, optimizer);
  if (gradient_check && !check_block(model, activations, training.first_samples(), job.group(), stream)) {
    fail(kFailed, "the gradients are wrong");
  }

  while (training.next_epoch()) {
    while (training.next_step()) {
      const Batch batch = training.batch();
      model.forward(batch, activations);
      model.loss(activations, batch.y, batch.samples, training.loss());
      model.backward(activations);
      optimizer.step(model.values(), model.grads());
    }
    training.evaluate([&](const Batch& batch, float* loss) {  // every rank has the whole loss
      model.forward(batch, activations);
      model.loss(activations, batch.y, training.evaluated(), loss);
    });
  }
  record_parameters(model.parameters(), job.rank(), job.group(), stream);
}
