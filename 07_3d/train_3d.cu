// SPDX-License-Identifier: Apache-2.0
// 3D parallelism: every layer is cut over a tensor group (chapter 05), the layers are divided among the stages of a
// pipeline (chapter 04), and replicas of that pipeline see different samples (chapter 02) and may share the optimizer
// state (chapter 06). Only the mesh of ranks, in mesh.h, is new; this program combines code of the earlier chapters.
// With --cp, the sequences are cut, too (chapter 08); with --ep, experts are spread over ranks (chapter 09).
#include <array>
#include <deque>

#include "01_single_gpu/models.h"
#include "02_ddp/ddp.h"
#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/partition_option.h"
#include "04_pipeline/pipeline.h"
#include "04_pipeline/support/evaluate.h"
#include "05_tensor_parallel/support/parallel_models.h"
#include "07_3d/chunk_update.h"
#include "07_3d/mesh.h"
#include "07_3d/mesh_clipping.h"
#include "07_3d/support/mesh_settings.h"
#include "07_3d/support/sequences.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

namespace {

// Says which samples this rank sees, and whether it reports their losses.
ReplicaPlace place_in(const Mesh& mesh) {
  ReplicaPlace place;
  // TODO 07.5: Set the number of shares of the samples, this rank's share, and whether this rank reports the losses.
  //   These are place.replicas, place.replica and place.reports. All ranks of a replica work on the same batch,
  //   whichever layers or features they have. One rank of each replica reports; in the first replica it is rank 0.
  //   Count the data coordinate; --cp is taken into account afterwards.
  todo("07.5");
  // END TODO 07.5
  probe("07.5", "number of shares of the samples, this rank's share, whether it reports",
        std::vector<int>{place.replicas, place.replica, place.reports});
  return place;
}

// Trains this rank's stage, together with all other ranks.
void train_stage(Training& training, const Schedule& schedule, PipelineStage& stage, PipelineExecutor& executor,
                 std::deque<ChunkUpdate>& updates, const MeshClipping& clipping, OwnPositions& part, const Mesh& mesh,
                 cudaStream_t stream) {
  for (const ModelChunk& chunk : stage.chunks())
    probe("07.I", "parameters before the first step", chunk.model.values(), {chunk.model.count()}, stream);
  const auto ready = [&](int chunk, int layer) { updates[chunk].layer_ready(layer); };
  const auto update = [&] {
    for (ChunkUpdate& chunk : updates) chunk.average();
    if (clipping.enabled()) clipping.clip(training.losses().gradient_norm());
    for (ChunkUpdate& chunk : updates) chunk.update(training.lr_factor());
  };
  // All ranks of a tensor group compute the same loss: only one of them counts it.
  DeviceBuffer<float> uncounted(1, Memory::data);
  const auto add_loss = [&](const Batch& batch, float* loss) {
    float* counted = mesh.at.tensor == 0 ? loss : uncounted.data();
    const int samples = training.evaluated() * mesh.shape.context;  // each of the context ranks adds its tokens
    evaluate_batch(stage, schedule, mesh.pipeline, part(batch), samples, counted, stream);
  };

  while (training.next_epoch()) {
    while (training.next_step()) {
      stage.begin_step(part(training.batch()), training.loss());
      executor.step(update, ready);
    }
    // The stage of the last part has computed the losses; the first one reports them.
    part.average(training.losses());
    send_losses(training.losses(), schedule, mesh.pipeline, stream);
    if (mesh.at.pipeline == 0 && mesh.data.size() > 1) average_losses(training.losses(), mesh.data, stream);
    evaluate(training, mesh.replicas, stream, add_loss);
  }
  evaluate(training, mesh.replicas, stream, add_loss);

  // After gathering over the tensor group, all ranks of a stage must have the same parameters.
  for (const ModelChunk& chunk : stage.chunks()) {
    for (const Parameter& p : chunk.model.parameters()) {
      const int replica = mesh.at.data / (is_of_expert(p) ? mesh.shape.expert : 1);
      record_parameters({p}, replica * mesh.shape.tensor + mesh.at.tensor, mesh.tensor, stream);
    }
  }
}

void train(const Options& options, const MeshSettings& settings, const Mesh& mesh, const ReplicaPlace& place,
           const Job& job, cudaStream_t stream) {
  probe("07.I", "given to train: whether sharded", std::array{int{settings.sharded()}});
  OwnPositions part(options, mesh, stream);
  const bool sharded = settings.sharded();  // ZeRO: each replica updates its shard of the parameters

  // The whole network, with its layers cut over the tensor group.
  const Network network =
      settings.cuts_more() ? cut_network(options, settings, mesh)
      : mesh.shape.tensor > 1
          ? make_parallel_network(options, mesh.tensor, {.sequence_parallel = settings.sequence_parallel})
          : make_network(options);

  // This rank's stage of the pipeline: one chunk of layers, or several if the schedule is interleaved.
  const Schedule schedule = make_schedule(settings);
  const std::vector<int> bounds = partition_layers(network.counts(), settings.parts(), default_partition(options));
  PipelineStage stage(network, options.batch_size, schedule, mesh.at.pipeline, bounds,
                      options.gpt.recompute == "stages", stream, sharded ? Storage::bound : Storage::own);
  IdleClock clock(stream, kProbedSteps);
  PipelineExecutor executor(schedule, stage, mesh.pipeline, stream, clock);

  // One update per chunk: averages the chunk's gradients over the replicas, then runs the optimizer.
  std::deque<ChunkUpdate> updates = make_updates(options, stage, mesh, sharded, settings.bucket_mb * (1 << 20), stream);
  // Every rank draws the whole network's parameters and keeps its own, so none have to be sent.
  for (ModelChunk& chunk : stage.chunks()) chunk.model.initialize(options.model_seed);
  const MeshClipping clipping(options, updates, mesh, sharded, stream);

  // The samples of this rank's replica. Only the first stage reads the inputs.
  DataSource data = network.data();
  data.needs_x = mesh.at.pipeline == 0;
  Training training(options, job, place, whole_samples(data, options, mesh), stream);
  for (ChunkUpdate& chunk : updates) chunk.add_to(training);

  train_stage(training, schedule, stage, executor, updates, clipping, part, mesh, stream);
}

}  // namespace

int main(int argc, char** argv) {
  Options options("07_3d/train_3d", "Trains a model with data, pipeline and tensor parallelism.",
                  Sampling::distributed);
  MeshSettings settings;
  add_options(options, settings);
  options.with_models({"none", "blocks", "stages"});
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  complete(settings, options);
  Job job(options);
  if (!settings.tensor_across_nodes) require_tensor_groups_within_nodes(settings.mesh, job);

  const Mesh mesh(settings.mesh, job);
  print_mesh(mesh.shape);
  const Stream stream;
  train(options, settings, mesh, share_samples(place_in(mesh), mesh), job, stream);
}
