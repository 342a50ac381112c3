// SPDX-License-Identifier: Apache-2.0
// 3D parallelism: the layers cut over tensor groups (chapter 05), in stages of a pipeline (chapter 04), of which data
// parallel replicas see batches of their own (chapter 02) and may share the optimizer's state (chapter 06). What is new
// is the mesh of ranks in mesh.h; the rest puts together what the earlier chapters have.
#include <deque>

#include "01_single_gpu/models.h"
#include "02_ddp/replicas.h"
#include "03_model_parallel/losses.h"
#include "03_model_parallel/partition.h"
#include "04_pipeline/evaluate.h"
#include "04_pipeline/executor.h"
#include "05_tensor_parallel/parallel_models.h"
#include "chunk_update.h"
#include "common/job.h"
#include "common/training.h"
#include "mesh.h"
#include "mesh_clipping.h"
#include "settings.h"

using namespace workshop;

namespace {

void train(const Options& options, const Settings& settings, const Mesh& mesh, const Job& job, cudaStream_t stream) {
  const Group *stages = nullptr, *replicas = nullptr;
  // TODO 07.5: Which ranks does this one send activations and gradients to, and receive them from?
  //   They are the stages of its pipeline. `mesh` has three groups.
  stages = &mesh.pipeline;
  // END TODO 07.5
  probe("07.5", "ranks of the pipeline's stages", stages->members());
  // TODO 07.6: Over which ranks are this rank's gradients averaged?
  //   A mean makes sense over gradients of the same parameters for different samples.
  replicas = &mesh.data;
  // END TODO 07.6
  probe("07.6", "ranks that average their gradients", replicas->members());

  const Network network =
      mesh.shape.tensor > 1
          ? make_parallel_network(options, mesh.tensor, {.sequence_parallel = settings.sequence_parallel})
          : make_network(options);
  const Schedule schedule = make_schedule(settings);
  const std::vector<int> bounds = partition_layers(network.counts(), settings.parts(), default_partition(options));
  Stage stage(network, options.batch_size, schedule, stages->rank(), bounds, options.gpt.recompute == "stages", stream,
              settings.sharded() ? Storage::bound : Storage::own);
  IdleClock clock(stream, kProbedSteps);
  PipelineExecutor executor(schedule, stage, *stages, stream, clock);
  std::deque<ChunkUpdate> updates;
  for (Chunk& chunk : stage.chunks()) {
    updates.emplace_back(options, chunk.model, *replicas, settings.sharded(), settings.bucket_mb * (1 << 20), stream);
    chunk.model.initialize(options.model_seed);
  }
  MeshClipping clipping(options, updates, mesh, settings.sharded(), stream);

  int shares = 1, share = 0;
  // TODO 07.7: Into how many shares are the samples divided, and which one is this rank's?
  //   All ranks of a replica work on the same batch, whichever layers or features they have.
  shares = mesh.shape.data;
  share = mesh.at.data;
  // END TODO 07.7
  probe("07.7", "number of shares of the samples, this rank's share", std::vector<int>{shares, share});
  const bool reports = mesh.at.pipeline == 0 && mesh.at.tensor == 0;
  DataSource data = network.data();
  data.needs_x = mesh.at.pipeline == 0;
  Training training(options, job, {shares, share, reports}, data, stream);
  for (ChunkUpdate& chunk : updates) chunk.add_to(training);

  const auto ready = [&](int chunk, int layer) { updates[chunk].layer_ready(layer); };
  const auto update = [&] {
    for (ChunkUpdate& chunk : updates) chunk.average();
    clipping.clip(training.losses().gradient_norm());
    for (ChunkUpdate& chunk : updates) chunk.update(training.lr_factor());
  };
  // All ranks of a tensor group compute the same loss, together: one of them counts it.
  DeviceBuffer<float> uncounted(1, Memory::data);
  const auto add_loss = [&](const Batch& batch, float* loss) {
    float* place = mesh.at.tensor == 0 ? loss : uncounted.data();
    evaluate(stage, schedule, mesh.pipeline, batch, training.evaluated(), place, stream);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      stage.begin_step(training.batch(), training.loss());
      executor.step([&] { clock.compute(update); }, ready);
    }
    send_losses(training.losses(), mesh.pipeline, stream);
    if (mesh.at.pipeline == 0 && mesh.data.size() > 1) average_losses(training.losses(), mesh.data, stream);
    evaluate(training, mesh.data, stream, add_loss);
  }
  evaluate(training, mesh.data, stream, add_loss);
  // Put together over the tensor group, all ranks of a stage have the same parameters.
  for (const Chunk& chunk : stage.chunks()) {
    record_parameters(chunk.model.parameters(), mesh.at.data * mesh.shape.tensor + mesh.at.tensor, mesh.tensor, stream);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("07_3d/train_3d", "Trains a model with data, pipeline and tensor parallelism.",
                  Sampling::distributed);
  Settings settings;
  add_options(options, settings);
  options.with_models({"none", "blocks", "stages"});
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  complete(settings, options);
  Job job(options);
  if (!settings.tensor_across_nodes) require_tensor_groups_within_nodes(settings.mesh, job);

  const Mesh mesh(settings.mesh, job);
  print_mesh(mesh.shape);
  const Stream stream;
  train(options, settings, mesh, job, stream);
}
