// SPDX-License-Identifier: Apache-2.0
// Shows plans: as a table on the screen, and in the file of --json.
#pragma once

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "07_3d/plan.h"
#include "07_3d/support/plan_settings.h"

namespace workshop {

// ---- the table -----------------------------------------------------------------------------------------------------

// Formats a number with the largest unit in which it is at least 1: "31.4 GB", "1.5 ms".
inline std::string with_unit(double value, const std::vector<const char*>& units) {
  if (value == 0) return "-";
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < units.size(); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
  return text;
}
inline std::string bytes_text(double bytes) { return with_unit(bytes, {"B", "kB", "MB", "GB", "TB"}); }
inline std::string time_text(double seconds) { return with_unit(seconds * 1e6, {"us", "ms", "s"}); }

inline void print_layout(const Layout& m, const ModelShape& model, const PlanSettings& s) {
  print0("%4d ", m.dp);
  if (s.cuts_sequences()) print0("%3d ", m.cp);
  if (s.spreads_experts()) print0("%3d ", m.ep);
  print0("%3d %3d %4d", m.pp, m.tp, m.zero);
  if (model.gpt) print0(" %4d", m.zero > 0 ? m.sharing() : 0);
  print0(" %4d", m.micro_batches);
  if (model.gpt) {
    print0(" %4d %4d %6s", model.rows / m.dp / m.micro_batches, m.chunks, m.recompute ? "blocks" : "none");
  }
}

inline void print_row(const Plan& plan, const ModelShape& model, const PlanSettings& s) {
  const MemoryPlan& memory = plan.fullest().memory;
  Traffic most;
  for (const StagePlan& stage : plan.stages) {
    most.tensor = std::max(most.tensor, stage.sent.tensor);
    most.data = std::max(most.data, stage.sent.all_data());
    most.pipeline = std::max(most.pipeline, stage.sent.pipeline);
    most.context = std::max(most.context, stage.sent.context);
    most.experts = std::max(most.experts, stage.sent.experts);
  }
  print_layout(plan.layout, model, s);
  print0(" |");
  for (const double bytes :
       {memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.buckets, memory.total()}) {
    print0(" %8s", bytes_text(bytes).c_str());
  }
  print0(" |");
  for (const double bytes : {most.tensor, most.data, most.pipeline}) print0(" %8s", bytes_text(bytes).c_str());
  if (s.cuts_sequences()) print0(" %8s", bytes_text(most.context).c_str());
  if (s.spreads_experts()) print0(" %8s", bytes_text(most.experts).c_str());
  print0(" | %5.1f %% %8s", 100 * plan.bubble, time_text(plan.seconds).c_str());
  if (model.gpt) print0(" %8.0f %7.1f %4.1f %%", plan.tokens_per_second, plan.flops / kTera, 100 * plan.mfu);
  print0("  %s\n", plan.fits ? "fits" : "too large");
}

// Of a mixture: how many parameters a token uses.
inline std::string active_text(const GptShape& g) {
  if (g.experts == 0) return "";
  char text[64];
  std::snprintf(text, sizeof text, "%.4g active per token, ", gpt_parameters(g, g.top_k));
  return text;
}

inline void print_heading(const ModelShape& model, const PlanSettings& s, const Cluster& cluster) {
  const std::string memory = bytes_text(cluster.memory);
  if (!model.gpt) {
    print0("%.4g parameters, %d rows per step; %d GPUs with %s, %d per node\n", model.parameters, model.rows,
           cluster.gpus, memory.c_str(), cluster.gpus_per_node);
    print0("%22s | %-53s | %-26s |\n", "mesh", "held by a GPU of the fullest stage", "sent by a GPU per step");
    print0("%4s %3s %3s %4s %4s |", "dp", "pp", "tp", "zero", "m-b");
  } else {
    const int more = int{s.cuts_sequences()} + int{s.spreads_experts()};  // columns
    print0(
        "%.4g parameters, %s%d sequences of %d tokens per step; %d GPUs with %s to use (%d %% kept free), %d per "
        "node\n",
        model.parameters, active_text(*model.gpt).c_str(), model.rows, model.gpt->context, cluster.gpus, memory.c_str(),
        s.margin, cluster.gpus_per_node);
    print0("%*s | %-53s | %-*s |\n", 44 + 4 * more, "mesh", "held by a GPU of the fullest stage", 26 + 9 * more,
           "sent by a GPU per step");
    print0("%4s %s%s%3s %3s %4s %4s %4s %4s %4s %6s |", "dp", s.cuts_sequences() ? " cp " : "",
           s.spreads_experts() ? " ep " : "", "pp", "tp", "zero", "over", "m-b", "rows", "chks", "recomp");
  }
  print0(" %8s %8s %8s %8s %8s %8s | %8s %8s %8s%s%s | %7s %8s", "params", "grads", "optim", "activ", "buckets",
         "total", "tensor", "data", "pipeline", s.cuts_sequences() ? "  context" : "",
         s.spreads_experts() ? "  experts" : "", "bubble", "step");
  if (model.gpt) print0(" %8s %7s %6s", "tokens/s", "TFLOP/s", "MFU");
  print0("\n");
}

inline void print_table(const std::vector<Plan>& plans, const ModelShape& model, const PlanSettings& s) {
  print_heading(model, s, make_cluster(s));
  const std::size_t rows = s.rows;
  for (std::size_t i = 0; i < plans.size() && i < rows; ++i) print_row(plans[i], model, s);
  if (plans.size() > rows) print0("and %zu more (--rows)\n", plans.size() - rows);
}

// Says how long sequences must be for attention to hide what the best plan with a context group sends around its ring.
inline void print_hidden(const std::vector<Plan>& plans, const ModelShape& model, const Cluster& cluster) {
  const auto cut = std::ranges::find_if(plans, [](const Plan& plan) { return plan.layout.cp > 1; });
  if (cut == plans.end()) return;
  const Layout& m = cut->layout;
  const double from = hidden_from(model, cluster, group_link(model, cluster, m.tp, m.cp));
  print0("attention hides the ring from %.0f positions per GPU on: with --cp %d and --tp %d, from --context %.0f on\n",
         from, m.cp, m.tp, from * m.cp);
}

// ---- the file of --json --------------------------------------------------------------------------------------------

inline nlohmann::ordered_json json_of(const StagePlan& stage) {
  const MemoryPlan& memory = stage.memory;
  return {{"memory",
           {{"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"activations", memory.activations},
            {"buckets", memory.buckets}}},
          {"sent",
           {{"tensor", stage.sent.tensor},
            {"data", stage.sent.all_data()},
            {"pipeline", stage.sent.pipeline},
            {"context", stage.sent.context},
            {"experts", stage.sent.experts}}}};
}

inline nlohmann::ordered_json json_of(const Plan& plan, const ModelShape& model) {
  const Layout& layout = plan.layout;
  nlohmann::ordered_json json = {{"dp", layout.dp},
                                 {"pp", layout.pp},
                                 {"tp", layout.tp},
                                 {"zero", layout.zero},
                                 {"micro_batches", layout.micro_batches}};
  if (model.gpt) {
    json.update({{"cp", layout.cp},
                 {"ep", layout.ep},
                 {"hybrid", layout.hybrid},
                 {"chunks", layout.chunks},
                 {"recompute", layout.recompute},
                 {"sequence_parallel", layout.sequence_parallel},
                 {"tokens_per_second", plan.tokens_per_second},
                 {"flops_per_gpu", plan.flops},
                 {"mfu", plan.mfu}});
  }
  json.update({{"fits", plan.fits}, {"bubble", plan.bubble}, {"seconds_per_step", plan.seconds}});
  for (const StagePlan& stage : plan.stages) json["stages"].push_back(json_of(stage));
  return json;
}

// All plans, with every stage's numbers.
inline std::string json_text(const std::vector<Plan>& plans, const ModelShape& model) {
  nlohmann::ordered_json json = {{"parameters", model.parameters}};
  if (model.gpt && model.gpt->experts > 0) json["active_parameters"] = gpt_parameters(*model.gpt, model.gpt->top_k);
  json["plans"] = nlohmann::ordered_json::array();
  for (const Plan& plan : plans) json["plans"].push_back(json_of(plan, model));
  return json.dump(1) + "\n";
}

}  // namespace workshop
