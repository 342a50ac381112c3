// Trains one block of multi-head causal self-attention whose heads are cut over the ranks: attention.h has it.
//
// A sample of the data set is a sequence: --sequence positions of --width random numbers each, with a target likewise.
#include "attention.h"
#include "checkpoint_shards.h"
#include "common/data.h"
#include "common/job.h"
#include "gradient_check.h"

using namespace workshop;

namespace {

// Compares the gradients of the parameters, and that of the input, with central differences of the loss of `batch`.
bool check_block(ParallelAttention& model, const Batch& batch, int width, const TensorGroup& group,
                 cudaStream_t stream) {
  DeviceBuffer<float> x(batch.rows * width, Memory::data), loss(1, Memory::data);
  CUDA_CHECK(cudaMemcpyAsync(x.data(), batch.x, x.bytes(), cudaMemcpyDeviceToDevice, stream));
  const auto loss_of_batch = [&]() -> double {
    CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));
    model.forward(x.data(), batch.rows);
    model.loss(batch.y, batch.rows, loss.data());
    return loss.download(stream)[0];
  };
  loss_of_batch();
  float* dx = model.backward(x.data(), batch.rows);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<ShardedParameter> checked = model.parameters().all();
  checked.push_back({"input", {batch.rows, width}, Split::none, batch.rows, width, x.data(), dx});
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
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  if (width % heads != 0) {
    usage_error("--width is '" + std::to_string(width) + "'; expected a multiple of the " + std::to_string(heads) +
                " heads");
  }
  if (heads % process_ranks().world != 0) {
    usage_error("--heads is '" + std::to_string(heads) + "'; expected a multiple of the " +
                std::to_string(process_ranks().world) + " ranks");
  }
  require_sizes(options, sequence, width, heads);
  Job job(options);

  const Stream stream;
  const TensorGroup group{job.comm(), job.rank(), job.world()};
  ParallelAttention model(sequence, width, heads, options.batch_size, group, stream);
  model.initialize(options.model_seed);
  const ShardedParameters& parameters = model.parameters();
  ParameterUpdate update(options, parameters.count(), stream);

  const RandomTensorDataset dataset(options.samples, sequence * width, sequence * width, options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank() == 0 ? 0 : -1, 1, stream);

  if (gradient_check) {
    RandomSampler in_order(options.samples, false, dataset.generator);
    loader.start_epoch(in_order.next_epoch());
    if (!check_block(model, loader.batch(0), sequence * width, group, stream)) {
      fail(kFailed, "the gradients are wrong");
    }
  }

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  add_training(checkpoints, parameters, group, update);
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      const Batch batch = loader.batch(step);
      model.forward(batch.x, batch.rows);
      model.loss(batch.y, batch.rows, loss);
      model.backward(batch.x, batch.rows);
      update.step(parameters.values(), parameters.grads());
      checkpoints.step_done(epoch, step + 1, loader);
    }
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  parameters.record(job.rank());
}
