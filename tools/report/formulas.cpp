// SPDX-License-Identifier: Apache-2.0
#include "tools/report/formulas.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "07_3d/plan.h"

namespace workshop {

// The plan is the solution's, which contains probes and calls to fail(). This tool records nothing and ends no rank.
void probe(const char*, Label, std::span<const double>) {}
void fail(int, const std::string& message) { throw std::runtime_error(message); }

namespace tools {
namespace {

constexpr int kMost = 1 << 16;  // largest count accepted from a record

// Returns an option that must be a whole number of at least 1; 0 if it is not.
int whole(const RunRecord& run, const std::string& name, int otherwise) {
  const double value = option(run, name, otherwise);
  return value >= 1 && value <= kMost ? static_cast<int>(value) : 0;
}

// True if each of these options is missing or has the given value. Other options do not change what a rank holds.
bool plain(const RunRecord& run, const std::map<std::string, std::string>& expected) {
  return std::ranges::all_of(expected, [&](const auto& one) {
    const auto found = run.settings.find(one.first);
    return found == run.settings.end() || found->second == one.second;
  });
}

// The mesh of ranks that a program uses. Accumulated batches count as micro-batches.
std::optional<Layout> layout_of(const RunRecord& run) {
  const std::string name = run.chapter + "/" + run.program;
  Layout layout{.micro_batches = whole(run, "accumulation-steps", 1)};
  if (run.chapter == "01_single_gpu" || run.chapter == "02_ddp" || run.chapter == "10_less_communication") {
    layout.dp = run.program == "parameter_server" ? 1 : run.world;
  } else if (name == "03_model_parallel/model_parallel" || name == "04_pipeline/pipeline") {
    layout.pp = run.world;
    layout.micro_batches = whole(run, "micro-batches", 1);
  } else if (name == "05_tensor_parallel/tensor_parallel") {
    layout.tp = run.world;
  } else if (name == "06_fsdp/zero" || name == "06_fsdp/fsdp") {
    layout.dp = run.world;
    layout.prefetch = run.program == "fsdp";
    layout.zero = layout.prefetch ? 3 : whole(run, "stage", 0);
  } else if (name == "07_3d/train_3d") {
    layout.pp = whole(run, "pp", 1);
    layout.tp = whole(run, "tp", 1);
    if (layout.pp < 1 || layout.tp < 1 || run.world % layout.pp != 0 || run.world / layout.pp % layout.tp != 0)
      return {};
    layout.dp = run.world / layout.pp / layout.tp;
    layout.zero = whole(run, "zero", 0);
    layout.micro_batches = whole(run, "micro-batches", 1);
  } else {
    return {};
  }
  return layout;
}

std::string setting(const RunRecord& run, const std::string& name) {
  const auto found = run.settings.find(name);
  return found == run.settings.end() ? "" : found->second;
}

// Only for whole models: programs balance the parts of a language model by parameters, a plan by blocks.
std::optional<ModelShape> gpt_of(const RunRecord& run, Layout& layout) {
  const auto head = std::ranges::find(run.parameters, "head.weight", &Tensor::name);
  const auto number = [&](const char* name) { return whole(run, name, 0); };
  const bool is_whole = layout.pp == 1 && layout.tp == 1 && layout.zero == 0 && option(run, "dropout", 0) == 0 &&
                        option(run, "experts", 0) == 0;
  if (!is_whole || head == run.parameters.end() || number("blocks") < 1) return {};
  layout.recompute = setting(run, "recompute") == "blocks";
  ModelShape model;
  model.gpt = {number("blocks"), number("width"), number("heads"), number("context"), static_cast<int>(head->shape[0])};
  model.gpt->kv_heads = model.gpt->heads;
  model.gpt->mlp_width = 4 * model.gpt->width;
  return model;
}

std::optional<ModelShape> mlp_of(const RunRecord& run) {
  const auto widths = nlohmann::json::parse(setting(run, "layers"), nullptr, /*allow_exceptions=*/false);
  if (!plain(run, {{"recompute", "none"}}) || !widths.is_array() || widths.size() < 2) return {};
  for (const auto& width : widths) {
    if (!width.is_number_integer() || width.get<std::int64_t>() < 1 || width.get<std::int64_t>() > INT32_MAX) return {};
  }
  ModelShape model;
  model.widths = widths.get<std::vector<int>>();
  return model;
}

std::optional<ModelShape> model_of(const RunRecord& run, Layout& layout) {
  const std::string kind = run.program == "gpt" ? "gpt" : setting(run, "model");
  std::optional<ModelShape> model;
  if (kind == "gpt") model = gpt_of(run, layout);
  if (kind == "mlp" || kind.empty()) model = mlp_of(run);
  if (!model) return {};
  const bool cuts_batches = layout.pp > 1 || run.chapter == "07_3d" || run.chapter == "04_pipeline";
  const int batches = cuts_batches ? 1 : layout.micro_batches;  // the program cuts batches, or accumulates whole ones
  model->activation = setting(run, "activation") == "none" ? Activation::none : Activation::gelu;
  model->optimizer = setting(run, "optimizer") == "adamw" ? OptimizerKind::adamw : OptimizerKind::sgd;
  const std::int64_t rows = std::int64_t{whole(run, "batch-size", 1)} * batches * layout.dp;
  model->rows = rows > INT32_MAX ? 0 : static_cast<int>(rows);
  return model;
}

// ---- differences from a plan ---------------------------------------------------------------------------------------

// Chapter 04 with the GPipe schedule, and chapter 03, which has one micro-batch and counts the buffers of messages as
// activations.
void change_pipeline(Formula& formula, const RunRecord& run, const ModelShape& model, const Layout& layout, int s) {
  const std::vector<int> bounds = stage_bounds(model, layout);
  const StageShape part = make_part(model, layout, bounds[s], bounds[s + 1]);
  const bool receives = s > 0, sends = s + 1 < layout.pp;
  const double M = layout.micro_batches, value = 4 * replica_rows(model, layout) / M;
  if (run.chapter == "03_model_parallel") {
    formula.memory["activations"] = value * (part.kept + 2 * part.widest + (receives ? 2 * part.in : 0));
    formula.memory["buckets"] = 0;
  } else if (setting(run, "schedule") == "gpipe") {
    formula.memory["activations"] = value * (M * part.kept + (receives ? M * part.in : 0) + 2 * part.widest);
    formula.memory["buckets"] = value * ((sends ? std::min(2.0, M) * part.out : 0) + (receives ? 2 * part.in : 0));
  }
}

// A message holds the parameters or their gradient, and one more word. How many steps each worker makes is unknown, so
// there is no formula for what it sends.
void change_server(Formula& formula, const RunRecord& run, double parameters, int rank) {
  const double message = 4 * (parameters + 1), workers = run.world - 1;
  formula.sent.clear();
  if (rank == 0) {
    formula.memory["gradients"] = 0;
    formula.memory["buckets"] = 2 * workers * message;
    formula.memory.erase("activations");  // the server needs them only for evaluation
    formula.sent["data"] = message;
  } else {
    formula.memory["parameters"] = formula.memory["gradients"] = message;
    formula.memory["optimizer"] = 0;
  }
}

// The programs of chapter 10, which do not average whole gradients in every step.
void change_replicas(Formula& formula, const RunRecord& run, double parameters, int rank) {
  const double ranks = run.world, whole = 4 * parameters, all_reduce = 2 * (ranks - 1) / ranks;
  double& sent = formula.sent["data"];
  if (run.program == "local_sgd") {
    sent = all_reduce * whole / option(run, "sync-every", 1);
    const bool is_the_mean = option(run, "outer-lr", 1) == 1 && option(run, "outer-momentum", 0) == 0;
    if (!is_the_mean) formula.memory["optimizer"] += 2 * whole;
  } else if (run.program == "decentralized") {
    const double neighbors = std::min(ranks - 1, 2.0);
    formula.memory["buckets"] = neighbors * whole;
    sent = neighbors * whole;
  } else if (run.program == "ddp_compressed") {
    const std::string kind = setting(run, "compress");
    const double kept = option(run, "ratio", 0) * parameters, code = (kind == "int8" ? 1 : 1.0 / 8) * parameters;
    if (kind == "topk") sent = (ranks - 1) * 8 * kept;    // each value with its place, to all other ranks
    if (kind == "randomk") sent = all_reduce * 4 * kept;  // values only: all ranks know the places
    if (kind == "int8" || kind == "sign")
      sent = code + (ranks - 1) / ranks * code;  // a part to every rank, including itself, then the means
    formula.memory.erase("buckets");
  } else if (run.program == "parameter_server") {
    change_server(formula, run, parameters, rank);
  }
}

Formula of_stage(const StagePlan& stage) {
  Formula formula;
  formula.memory = {{"parameters", stage.memory.parameters},
                    {"gradients", stage.memory.gradients},
                    {"optimizer", stage.memory.optimizer},
                    {"activations", stage.memory.activations},
                    {"buckets", stage.memory.buckets}};
  for (const auto& [group, bytes] :
       {std::pair("data", stage.sent.data), {"tensor", stage.sent.tensor}, {"pipeline", stage.sent.pipeline}}) {
    if (bytes > 0) formula.sent[group] = bytes;
  }
  return formula;
}

}  // namespace

std::map<int, Formula> formulas(const RunRecord& run) {
  std::optional<Layout> layout = layout_of(run);
  const bool known = layout && plain(run, {{"precision", "fp32"},
                                           {"clip-norm", "0.0"},
                                           {"partition", ""},
                                           {"chunks", "1"},
                                           {"simulate-compute", "0.0"},
                                           {"hybrid", std::to_string(run.world)},
                                           {"unit-layers", "1"},
                                           {"min-unit-parameters", "0"},
                                           {"reshard-after-forward", "true"},
                                           {"prefetch", "true"},
                                           {"backward-prefetch", ""},
                                           {"cpu-offload", "false"}});
  const std::optional<ModelShape> model = known ? model_of(run, *layout) : std::nullopt;
  if (!model || layout->dp < 1 || layout->micro_batches < 1 || layout->zero > 3) return {};
  if (run.world < 1 || run.world > kMost || model->rows < 1) return {};
  if (setting(run, "schedule") == "zb-v") return {};                        // plans place the parts in a ring
  const Cluster machine{run.world, run.world, 0, 1, 1, 1, {0, 1}, {0, 1}};  // affects only times
  if (run.program != "parameter_server" && !infeasible_because(*model, machine, *layout).empty()) return {};
  const Plan plan = make_plan(*model, machine, *layout);
  const double parameters = make_part(*model, {}, 0, model->gpt ? model->gpt->blocks : model->layers()).parameters;
  std::map<int, Formula> result;
  for (int rank = 0; rank < run.world; ++rank) {
    const int stage = layout->pp == 1 ? 0 : rank / (layout->dp * layout->tp);
    Formula& formula = result[rank] = of_stage(plan.stages[stage]);
    if (run.chapter == "10_less_communication") change_replicas(formula, run, parameters, rank);
    if (run.chapter == "03_model_parallel" || run.chapter == "04_pipeline")
      change_pipeline(formula, run, *model, *layout, stage);
    // In chapter 06, each unit has its own buffers for gradients; a plan counts one pair (chapter 07).
    if (run.chapter == "06_fsdp") formula.memory.erase("activations");
    if (setting(run, "schedule") == "zb-h1") formula.memory.erase("activations");  // plans split no backwards
  }
  return result;
}

}  // namespace tools
}  // namespace workshop
