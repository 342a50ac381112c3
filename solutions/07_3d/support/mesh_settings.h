// SPDX-License-Identifier: Apache-2.0
// The options of train_3d: which combinations are valid, and which mesh and schedule they describe.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <string>

#include "01_single_gpu/models.h"
#include "04_pipeline/support/check_schedule.h"
#include "04_pipeline/support/pipeline_options.h"
#include "05_tensor_parallel/support/tensor_parallel_options.h"
#include "07_3d/mesh.h"
#include "08_context_parallel/support/context_options.h"
#include "common/job/job.h"

namespace workshop {

struct MeshSettings {
  MeshShape mesh;
  int replicas = 0;
  PipelineOptions pipeline;
  int zero = 0;
  double bucket_mb = 25;
  bool sequence_parallel = false, tensor_across_nodes = false;
  bool has_experts = false;

  int parts() const { return mesh.pipeline * pipeline.chunks; }
  // Whether more is cut than in chapter 05: sequences, experts, or blocks with a mixture of experts.
  bool cuts_more() const { return mesh.context > 1 || mesh.expert > 1 || (has_experts && mesh.tensor > 1); }
  bool sharded() const { return zero == 1 && mesh.data > 1; }
};

inline void add_options(Options& options, MeshSettings& s) {
  options.add("--dp", s.replicas, "data-parallel replicas; default: ranks / (pp * cp * tp)", 1);
  options.add("--pp", s.mesh.pipeline, "pipeline stages of a replica", 1);
  options.add("--cp", s.mesh.context, "ranks over which the sequences of a language model are cut", 1);
  options.add("--tp", s.mesh.tensor, "ranks over which the layers of a stage are cut", 1);
  options.add("--ep", s.mesh.expert, "ranks along the data dimension that have all experts together", 1);
  options.add("--zero", s.zero, "1: the replicas share the optimizer state, as in 06_fsdp/zero --stage 1", 0, 1);
  s.pipeline.add_to(options, "parts of a batch; default: 4, and 1 without a pipeline");
  options.add("--bucket-mb", s.bucket_mb, "size at which a bucket of gradients is full (MiB)", 0.0);
  options.add_flag("--sequence-parallel", s.sequence_parallel,
                   "cut the rows between the layers of a language model over the tensor group");
  options.add_flag("--allow-tp-across-nodes", s.tensor_across_nodes, "let a tensor group have ranks of several nodes");
}

// ---- valid combinations --------------------------------------------------------------------------------------------

// Computes d if it is not given. Ends the program unless d·p·c·t is the number of ranks.
inline void complete_mesh(MeshShape& mesh, int replicas) {
  const int world = process_ranks().world;
  const std::int64_t replica = std::int64_t{mesh.pipeline} * mesh.context * mesh.tensor;
  const char* ranks = world == 1 ? "rank" : "ranks";
  const std::string context = mesh.context > 1 ? "--cp is '" + std::to_string(mesh.context) + "', " : "";
  if (replicas == 0 && world % replica != 0) {
    usage_error("%s--pp is '%d' and --tp is '%d', which makes %" PRId64
                " ranks a replica; expected a divisor of the %d %s",
                context.c_str(), mesh.pipeline, mesh.tensor, replica, world, ranks);
  }
  if (replicas == 0) replicas = static_cast<int>(world / replica);
  if (replicas != world / replica || world % replica != 0) {
    usage_error("%s--dp is '%d', --pp is '%d' and --tp is '%d'; expected a product of %d %s", context.c_str(), replicas,
                mesh.pipeline, mesh.tensor, world, ranks);
  }
  mesh.data = replicas * mesh.context;
}

// Fills in the options that are not given, and ends the program if options contradict each other.
inline void complete(MeshSettings& s, const Options& options) {
  complete_mesh(s.mesh, s.replicas);
  const int stages = s.mesh.pipeline;
  s.pipeline.complete(stages, "--pp", options.gpt.recompute);
  s.pipeline.require_divisor(options.batch_size);
  const bool gpt = options.model == ModelKind::gpt, mlp = options.model == ModelKind::mlp;
  const bool pairs = s.mesh.tensor > 1 && mlp;
  if (!gpt && !mlp && s.mesh.tensor > 1) {
    usage_error("--tp is '%d'; expected 1 with --model alexnet", s.mesh.tensor);
  }
  if (s.sequence_parallel && !gpt) usage_error("--sequence-parallel is for --model gpt only");
  if (s.mesh.context > 1 && !gpt) usage_error("--cp is for --model gpt only");
  if (s.mesh.context > 1) cut_of(options, s.mesh.context, "zigzag");
  const int experts = options.gpt.experts;
  if (s.mesh.expert > 1 && (!gpt || experts == 0)) usage_error("--ep is for --model gpt with --experts only");
  s.has_experts = gpt && experts > 0;
  if (s.has_experts && s.sequence_parallel) usage_error("--sequence-parallel is for models without --experts");
  if (s.mesh.data % s.mesh.expert != 0) {
    usage_error("--ep is '%d'; expected a divisor of the %d ranks of the data dimension", s.mesh.expert, s.mesh.data);
  }
  if (experts % s.mesh.expert != 0) {
    usage_error("--experts is '%d'; expected a multiple of the %d ranks of --ep", experts, s.mesh.expert);
  }
  if (pairs) require_pairs(options.layers, s.mesh.tensor);
  const int layers = depth_of_network(options);
  const int available = pairs ? layers / 2 : layers;
  if (available < s.parts()) {
    const char* what = pairs ? "pairs of layers" : "layers";
    const char* from = gpt ? "that --blocks makes" : mlp ? "in --layers" : "of AlexNet";
    usage_error("--pp is '%d', for stages of %d out of %d %s %s; expected at least %d %s", stages, s.pipeline.chunks,
                available, what, from, s.parts(), what);
  }
}

// Makes the schedule. Ends the job if it is wrong, because a run with it might never end.
inline Schedule make_schedule(const MeshSettings& s) {
  const Schedule schedule = s.pipeline.make_schedule(s.mesh.pipeline);
  const std::vector<ScheduleError> errors = check_schedule(schedule);
  if (!errors.empty()) fail(kFailed, "chapter 04's schedule is wrong:\n" + chart_and_errors(schedule, errors));
  return schedule;
}

inline void print_mesh(const MeshShape& shape) {
  const int replicas = shape.data / shape.context, parts = shape.context * shape.tensor;
  if (shape.context == 1) {
    print0("mesh of %d x %d x %d ranks: pipeline, data, tensor\n", shape.pipeline, shape.data, shape.tensor);
    if (shape.expert > 1)
      print0("every %d neighbors along the data dimension have all experts together\n", shape.expert);
  } else {
    print0("mesh of %d x %d x %d x %d ranks: pipeline, data, context, tensor\n", shape.pipeline, replicas,
           shape.context, shape.tensor);
  }
  for (int p = 0; p < shape.pipeline; ++p) {
    print0("stage %d:", p);
    for (int d = 0; d < replicas; ++d) {
      print0("%s replica %d on", d > 0 ? "," : "", d);
      for (int i = 0; i < parts; ++i) {
        print0(" %d", rank_of({p, d * shape.context + i / shape.tensor, i % shape.tensor}, shape));
      }
    }
    print0("\n");
  }
}

}  // namespace workshop
