// 3D parallelism: the layers cut over tensor groups (chapter 05), in stages of a pipeline (chapter 04), of which data
// parallel replicas see batches of their own (chapter 02) and may share the optimizer's state (chapter 06). What is new
// is the mesh of ranks in mesh.h; the rest puts together what the earlier chapters have.
#include <deque>

#include "01_single_gpu/checkpoint_mlp.h"
#include "01_single_gpu/mlp.h"
#include "03_model_parallel/partition.h"
#include "04_pipeline/check_schedule.h"
#include "04_pipeline/executor.h"
#include "05_tensor_parallel/checkpoint_shards.h"
#include "05_tensor_parallel/parallel_linear.h"
#include "common/data.h"
#include "common/job.h"
#include "mesh.h"
#include "part_update.h"

using namespace workshop;

namespace {

struct Settings {
  MeshShape mesh{.data = 0};
  int zero = 0, micro_batches = 0, chunks = 0;
  std::string schedule = "1f1b";
  double bucket_mb = 25;
  bool tensor_across_nodes = false;

  // With tensor parallelism, layers come in pairs.
  int layers_together() const { return mesh.tensor > 1 ? 2 : 1; }
  bool sharded() const { return zero == 1 && mesh.data > 1; }
};

void add_options(Options& options, Settings& s) {
  options.add("--dp", s.mesh.data, "data-parallel replicas; default: as many as the ranks make", 1);
  options.add("--pp", s.mesh.pipeline, "pipeline stages of a replica", 1);
  options.add("--tp", s.mesh.tensor, "ranks that a stage's layers are cut over", 1);
  options.add("--zero", s.zero, "1: the replicas share the optimizer's state, as in 06_fsdp/zero --stage 1", 0, 1);
  options.add("--micro-batches", s.micro_batches, "parts of a batch; default: 4, and 1 without a pipeline", 1, 1 << 20);
  options.add("--schedule", s.schedule, "order of the micro-batches' forwards and backwards",
              {"gpipe", "1f1b", "interleaved"});
  options.add("--chunks", s.chunks, "parts of the model a stage, if interleaved; default: 2", 1, 1 << 10);
  options.add("--bucket-mb", s.bucket_mb, "size from which on a bucket of gradients is full (MiB)", 0.0);
  options.add_flag("--allow-tp-across-nodes", s.tensor_across_nodes, "let a tensor group have ranks of several nodes");
}

// ---- what fits together --------------------------------------------------------------------------------------------

// Works out D if it is not given. Ends the program unless D·P·T is the number of ranks.
void complete_mesh(MeshShape& mesh) {
  const int world = process_ranks().world;
  const auto is = [](const char* option, int n) { return std::string(option) + " is '" + std::to_string(n) + "'"; };
  const std::int64_t replica = std::int64_t{mesh.pipeline} * mesh.tensor;
  const std::string expected = std::to_string(world) + (world == 1 ? " rank" : " ranks");
  if (mesh.data == 0 && world % replica != 0) {
    usage_error(is("--pp", mesh.pipeline) + " and " + is("--tp", mesh.tensor) + ", which makes " +
                std::to_string(replica) + " ranks a replica; expected a divisor of the " + expected);
  }
  if (mesh.data == 0) mesh.data = static_cast<int>(world / replica);
  if (mesh.data != world / replica || world % replica != 0) {
    usage_error(is("--dp", mesh.data) + ", " + is("--pp", mesh.pipeline) + " and " + is("--tp", mesh.tensor) +
                "; expected a product of " + expected);
  }
}

// Fills in what is not given, and ends the program on what does not fit together.
void complete(Settings& s, const Options& options) {
  complete_mesh(s.mesh);
  const int stages = s.mesh.pipeline;
  const auto number = [](int n) { return std::to_string(n); };
  const bool interleaved = s.schedule == "interleaved";
  if (s.micro_batches == 0) s.micro_batches = stages > 1 ? 4 : 1;
  if (s.chunks == 0) s.chunks = interleaved ? 2 : 1;
  if (!interleaved && s.chunks > 1) {
    usage_error("--chunks is '" + number(s.chunks) + "'; expected 1 unless --schedule is interleaved");
  }
  const std::string micro_batches = "--micro-batches is '" + number(s.micro_batches) + "'; expected ";
  if (interleaved && s.micro_batches % stages != 0) {
    usage_error(micro_batches + "a multiple of the " + number(stages) + " stages: interleaved takes groups of so many");
  }
  if (options.batch_size % s.micro_batches != 0) {
    usage_error(micro_batches + "a divisor of --batch-size, " + number(options.batch_size));
  }
  require_product({{"--pp", stages}, {"--micro-batches", s.micro_batches}, {"--chunks", s.chunks}}, 1 << 22);
  if (s.mesh.tensor > 1) require_pairs(options.layers, s.mesh.tensor);
  const int there = (static_cast<int>(options.layers.size()) - 1) / s.layers_together();
  if (there < stages * s.chunks) {
    const std::string what = s.mesh.tensor > 1 ? "pairs of layers" : "layers";
    usage_error("--pp is '" + number(stages) + "', for stages of " + number(s.chunks) + " out of " + number(there) +
                " " + what + " in --layers; expected at least " + number(stages * s.chunks) + " " + what);
  }
}

// Ends the job if the schedule is wrong: run, it might wait for ever.
Schedule make_schedule(const Settings& s) {
  const int stages = s.mesh.pipeline;
  const Schedule schedule = s.schedule == "gpipe"  ? gpipe(stages, s.micro_batches)
                            : s.schedule == "1f1b" ? one_f_one_b(stages, s.micro_batches)
                                                   : interleaved(stages, s.micro_batches, s.chunks);
  const std::vector<ScheduleError> errors = check_schedule(schedule);
  if (!errors.empty()) fail(kFailed, "chapter 04's schedule is wrong:\n" + report(schedule, errors));
  return schedule;
}

// Equal numbers of layers, or of pairs, for all parts.
std::vector<int> part_bounds(const Settings& s, const Options& options) {
  std::vector<int> widths;  // between which a part may end
  for (std::size_t i = 0; i < options.layers.size(); i += s.layers_together()) widths.push_back(options.layers[i]);
  std::vector<int> bounds = partition_layers(widths, s.mesh.pipeline * s.chunks, Partition::uniform);
  for (int& bound : bounds) bound *= s.layers_together();
  return bounds;
}

// ---- training ------------------------------------------------------------------------------------------------------

void print_mesh(const MeshShape& shape) {
  print0("mesh of %d x %d x %d ranks: pipeline, data, tensor\n", shape.pipeline, shape.data, shape.tensor);
  for (int p = 0; p < shape.pipeline; ++p) {
    print0("stage %d:", p);
    for (int d = 0; d < shape.data; ++d) {
      print0("%s replica %d on", d > 0 ? "," : "", d);
      for (int t = 0; t < shape.tensor; ++t) print0(" %d", rank_of({p, d, t}, shape));
    }
    print0("\n");
  }
}

// The last stages have the losses, rank 0 prints them: brings them to the first stage, and forms their mean over the
// replicas there.
void collect_losses(const LossLog& losses, const Mesh& mesh, cudaStream_t stream) {
  const Group& stages = mesh.pipeline;
  const int last = stages.size - 1;
  if (last > 0 && stages.rank == last) {
    NCCL_CHECK(ncclSend(losses.losses(), losses.count(), ncclFloat, 0, stages.comm, stream));
  } else if (last > 0 && stages.rank == 0) {
    NCCL_CHECK(ncclRecv(losses.losses(), losses.count(), ncclFloat, last, stages.comm, stream));
  }
  if (stages.rank > 0 || mesh.data.size == 1) return;
  NCCL_CHECK(ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclAvg, mesh.data.comm,
                           stream));
}

void record_parameters(const Mlp& model, int replica, cudaStream_t stream) {
  for (const Parameter& p : model.parameters()) record_parameter(replica, p.name, p.value, p.shape, stream);
}
void record_parameters(const ParallelMlp& model, int replica, cudaStream_t) { model.parameters().record(replica); }

std::vector<TensorPart> parts_of(const ParallelMlp& model, const TensorGroup& group) {
  return parts_of(model.parameters(), group);
}

// Model is Mlp, or ParallelMlp with its group of ranks, `tensor`.
template <typename Model, typename... Tensor>
void train(const Options& options, const Settings& settings, const Mesh& mesh, const Job& job, cudaStream_t stream,
           const Tensor&... tensor) {
  const Group *stages = nullptr, *replicas = nullptr;
  // TODO 07.5: Which ranks does this one send activations and gradients to, and receive them from?
  //   They are the stages of its pipeline. `mesh` has three groups.
  stages = &mesh.pipeline;
  // END TODO 07.5
  probe("07.5", "ranks of the pipeline's stages", stages->members);
  // TODO 07.6: Over which ranks are this rank's gradients averaged?
  //   A mean makes sense over gradients of the same parameters for different samples.
  replicas = &mesh.data;
  // END TODO 07.6
  probe("07.6", "ranks that average their gradients", replicas->members);

  const Schedule schedule = make_schedule(settings);
  StageMode mode;
  if (settings.sharded()) mode.storage = Storage::placed;
  StageOf<Model> stage(options, schedule, stages->rank, part_bounds(settings, options), mode, stream, tensor...);
  IdleClock clock(stream, kProbedSteps);
  PipelineExecutorOf<Model> executor(schedule, stage, stages->comm, stream, clock);
  std::deque<PartUpdate<Model>> updates;  // of each chunk
  for (auto& part : stage.parts()) {
    updates.emplace_back(options, part.model, *replicas, settings.sharded(), settings.bucket_mb * (1 << 20), stream);
    part.model.initialize(options.model_seed);
  }
  const auto ready = [&](int chunk, int layer) { updates[chunk].layer_ready(layer); };
  const auto update = [&] {
    for (PartUpdate<Model>& part : updates) part.step();
  };

  int shares = 1, share = 0;
  // TODO 07.7: Into how many shares are the samples divided, and which one is this rank's?
  //   All ranks of a replica work on the same batch, whichever layers or features they have.
  shares = mesh.shape.data;
  share = mesh.at.data;
  // END TODO 07.7
  probe("07.7", "number of shares of the samples, this rank's share", std::vector<int>{shares, share});
  const RandomTensorDataset dataset(options.samples, options.layers.front(), options.layers.back(), options.seed);
  DistributedSampler sampler(options.samples, shares, share, options.shuffle);
  DataLoader loader(dataset, options.batch_size, stream);
  const bool records = mesh.at.pipeline == 0 && mesh.at.tensor == 0;
  LossLog losses(options, records ? mesh.at.data : -1, mesh.shape.data, stream);

  Checkpoints checkpoints(options, mesh.shape.data, job.comm(), stream);
  for (std::size_t chunk = 0; chunk < updates.size(); ++chunk) {
    updates[chunk].add_to(checkpoints, parts_of(stage.parts()[chunk].model, tensor...));
  }
  const Progress start = checkpoints.resume(losses);
  for (PartUpdate<Model>& part : updates) part.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    sampler.set_epoch(epoch);
    loader.start_epoch(sampler.indices());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      stage.begin_step(loader.batch(step), loss);
      executor.step(update, ready);
      checkpoints.step_done(epoch, step + 1, loader);
    }
    collect_losses(losses, mesh, stream);
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  // Put together over the tensor group, all ranks of a stage have the same parameters.
  for (const auto& part : stage.parts()) {
    record_parameters(part.model, mesh.at.data * mesh.shape.tensor + mesh.at.tensor, stream);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("07_3d/train_3d", "Trains an MLP with data, pipeline and tensor parallelism.", Sampling::distributed);
  Settings settings;
  add_options(options, settings);
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  complete(settings, options);
  Job job(options);
  if (!settings.tensor_across_nodes) require_tensor_groups_within_nodes(settings.mesh, job);

  const Mesh mesh(settings.mesh, job);
  print_mesh(mesh.shape);
  const Stream stream;
  if (mesh.shape.tensor == 1) {
    train<Mlp>(options, settings, mesh, job, stream);
  } else {
    train<ParallelMlp>(options, settings, mesh, job, stream,
                       TensorGroup{mesh.tensor.comm, mesh.tensor.rank, mesh.tensor.size});
  }
}
