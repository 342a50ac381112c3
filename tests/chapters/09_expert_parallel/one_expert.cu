// SPDX-License-Identifier: Apache-2.0
// one_expert: a mixture of one expert without an auxiliary loss, started from the weights of the language model without
// mixtures, computes the same bits: losses, gradients and, after some steps, parameters.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "01_single_gpu/optimizer.h"
#include "09_expert_parallel/moe.h"
#include "09_expert_parallel/support/mixture_options.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

namespace {

using Values = std::map<std::string, std::vector<float>>;

// Returns the parameters by the names that they have without mixtures.
Values parameters_of(const Model& model, cudaStream_t stream) {
  Values values;
  for (const Parameter& p : model.parameters()) {
    std::string name = p.name;
    if (const auto at = name.find("experts.0."); at != std::string::npos) name.erase(at, std::strlen("experts.0."));
    std::vector<float>& of = values[name];
    of.resize(p.count());
    CUDA_CHECK(cudaMemcpyAsync(of.data(), p.value, of.size() * 4, cudaMemcpyDeviceToHost, stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return values;
}

// Trains for some steps from `start`, and adds the losses to the parameters that are returned.
Values train(const Options& options, const Job& job, const Network& network, const Values& start, cudaStream_t stream) {
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  for (const Parameter& p : model.parameters()) {
    std::string name = p.name;
    if (const auto at = name.find("experts.0."); at != std::string::npos) name.erase(at, std::strlen("experts.0."));
    if (const auto of = start.find(name); of != start.end()) {
      CUDA_CHECK(cudaMemcpyAsync(p.value, of->second.data(), of->second.size() * 4, cudaMemcpyHostToDevice, stream));
    }
  }
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  Training training(options, job, {}, network.data(), stream);
  DeviceBuffer<float> losses(64, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(losses.data(), 0, losses.bytes(), stream));
  int step = 0;
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), losses.data() + step);
        model.backward(activations, !batch.first);
      }
      ++step;
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
  }
  Values values = parameters_of(model, stream);
  values["losses"] = losses.download(stream);
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("09_expert_parallel/one_expert", "Compares a mixture of one expert with none.");
  options.for_one_rank();
  add_mixture_options(options, "full");
  options.parse(argc, argv);
  Job job(options);
  const Stream stream;
  const Network dense = make_gpt(options), mixture = make_gpt(options, make_moe);
  Values start;
  {
    Model model(make_gpt(options), options.batch_size, stream);
    model.initialize(options.model_seed);
    start = parameters_of(model, stream);
  }
  const Values expected = train(options, job, dense, start, stream);
  Values found = train(options, job, mixture, start, stream);
  for (int i = 0; i < options.gpt.blocks; ++i) found.erase("blocks." + std::to_string(i) + ".router.weight");
  if (found == expected && expected.size() > 20) return 0;
  for (const auto& [name, values] : expected) {
    if (found[name] != values) std::printf("%s differs\n", name.c_str());
  }
  return 1;
}
