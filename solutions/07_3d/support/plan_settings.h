// SPDX-License-Identifier: Apache-2.0
// The options of the planner, and the model and the cluster that they describe.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "07_3d/support/plan_gpt.h"
#include "common/base/files.h"
#include "common/job/job.h"

namespace workshop {

inline constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;

struct LinkSettings {
  double microseconds, gigabytes;  // latency; bandwidth per second, of a GPU in one direction
  std::string file;
};

// The numbers of a GPU and its links. Bandwidths are five sixths of those in the data sheets: what copies and rings
// reach.
struct MachineSpec {
  double memory;            // GB
  double peak;              // 10^12 operations per second, of 2-byte values
  double memory_bandwidth;  // GB/s
  LinkSettings node, network;
};
inline const MachineSpec kA100 = {80, 312, 1700, {5, 250, ""}, {15, 25, ""}};
inline const MachineSpec kH100 = {80, 989, 2800, {5, 375, ""}, {15, 50, ""}};

// Shares of the peak that are reached. That of products of large matrices is fitted: 07_3d/plan_math.md.
inline constexpr double kMlpEfficiency = 0.5, kProductEfficiency = 0.65;

// The options as given. 0 and "any" mean: compare all, or use a default that depends on other options.
struct PlanSettings {
  std::string model = "mlp";
  int width = 0, depth = 0, blocks = 0, heads = 0, context = 0, vocabulary = 0, global_batch = 1024;
  double parameters = 0;
  std::string precision, optimizer;
  int gpus = 8, gpus_per_node = 8;
  std::string machine = "a100";
  double memory = 0, peak = 0, memory_bandwidth = 0, efficiency = 0;
  LinkSettings node{0, 0, ""}, network{0, 0, ""};
  int margin = 10;
  int dp = 0, pp = 0, tp = 0, micro_batches = 0, chunks = 0, hybrid = 0;
  int cp = 1, ep = 1;
  int experts = 0, top_k = 0, mlp_width = 0, kv_heads = 0;
  double capacity = 0, imbalance = 1;
  bool gated = false;
  std::string attention = "whole", zero = "any", recompute = "any";
  bool prefetch = false, sequence_parallel = true, scatter = false;
  int rows = 20;
  std::string json;

  bool gpt() const { return model == "gpt"; }
  bool cuts_sequences() const { return cp != 1; }
  bool spreads_experts() const { return ep != 1; }
};

inline void add_model_options(Options& options, PlanSettings& s) {
  // Nothing is trained, so only the common options that describe the model remain.
  options.without({"--optimizer", "--lr", "--weight-decay", "--samples", "--batch-size", "--epochs", "--max-steps",
                   "--shuffle", "--seed", "--model-seed", "--log-every", "--verbose", "--timeline"});
  options.add("--model", s.model, "what is planned", {"mlp", "gpt"});
  options.add("--width", s.width, "gpt: numbers per token, default 4096; mlp: with --depth, instead of --layers", 1);
  options.add("--depth", s.depth, "mlp: layers of --width", 1, 1 << 16);
  options.add("--parameters", s.parameters, "mlp: instead of --layers, only a number of parameters", 0.0);
  options.add("--blocks", s.blocks, "gpt: blocks of attention and MLP, default 32", 1, 1 << 12);
  options.add("--heads", s.heads, "gpt: attention heads, default 32", 1, 1 << 20);
  options.add("--context", s.context, "gpt: tokens per sequence, default 4096", 1, 1 << 24);
  options.add("--vocabulary", s.vocabulary, "gpt: words in the vocabulary, default 32000", 1, 1 << 24);
  options.add("--mlp-width", s.mlp_width, "gpt: features of an MLP or an expert, default 4 times --width", 1, 1 << 24);
  options.add_flag("--gated", s.gated, "gpt: MLPs and experts have a third matrix, whose features gate the others");
  options.add("--kv-heads", s.kv_heads, "gpt: heads of keys and values, default --heads", 1, 1 << 20);
  options.add("--experts", s.experts, "gpt: experts in place of each block's MLP; 0: none", 0, 1 << 16);
  options.add("--top-k", s.top_k, "gpt: experts that compute a token, default 2", 1, 1 << 16);
  options.add("--capacity-factor", s.capacity,
              "gpt: places at an expert, by its fair share of a sequence's tokens; default: exact counts", 0.0);
  options.add("--imbalance", s.imbalance,
              "gpt: tokens of the rank with the most, as a multiple of the mean over the ranks of --ep", 0.0);
  options.add("--attention", s.attention, "gpt: whole rows of scores, or blocks of keys", {"whole", "blockwise"});
  options.add("--optimizer", s.optimizer, "default: sgd, with gpt adamw", {"sgd", "adamw"});
  options.add("--precision", s.precision,
              "mixed: 2 bytes per value, and 4 in the optimizer's own copy; default: fp32, with gpt mixed",
              {"fp32", "mixed"});
  options.add("--global-batch", s.global_batch, "rows (with gpt: sequences) per step, over all replicas", 1, 1 << 24);
}

inline void add_cluster_options(Options& options, PlanSettings& s) {
  options.add("--gpus", s.gpus, "GPUs in the cluster", 1, 1 << 20);
  options.add("--gpus-per-node", s.gpus_per_node, "GPUs per node", 1, 1 << 20);
  options.add("--machine", s.machine, "GPUs and links that set the defaults of the options below", {"a100", "h100"});
  options.add("--memory", s.memory, "GB (10^9 bytes) per GPU", 0.0);
  options.add("--memory-margin", s.margin, "gpt: percent of the memory to keep free", 0, 99);
  options.add("--memory-bandwidth", s.memory_bandwidth, "gpt: GB/s between a GPU and its memory", 0.0);
  options.add("--peak", s.peak, "10^12 operations per second and GPU", 0.0);
  options.add("--efficiency", s.efficiency,
              "share of the peak that is reached, default 0.5; with gpt only in products, default 0.65", 0.0);
  const auto add_link = [&options](const std::string& name, LinkSettings& link, const std::string& where) {
    options.add("--" + name + "-latency", link.microseconds, "microseconds per message " + where, 0.0);
    options.add("--" + name + "-bandwidth", link.gigabytes, "GB/s per GPU in one direction " + where, 0.0);
    options.add("--" + name + "-link", link.file,
                "latency and bandwidth from a file that 00_collectives/bandwidth wrote with --json", {});
  };
  add_link("node", s.node, "within a node");
  add_link("network", s.network, "between nodes");
}

inline void add_layout_options(Options& options, PlanSettings& s) {
  options.add("--dp", s.dp, "data-parallel replicas; default: all that are possible", 1, 1 << 20);
  options.add("--pp", s.pp, "pipeline stages; default: all that are possible", 1, 1 << 20);
  options.add("--tp", s.tp, "ranks of a tensor group; default: all that are possible", 1, 1 << 20);
  options.add("--cp", s.cp, "gpt: ranks that share a sequence (ring attention); 0: all that are possible", 0, 1 << 20);
  options.add("--ep", s.ep,
              "gpt: ranks of the same parameters that have all experts together; 0: all that are possible", 0, 1 << 20);
  options.add("--zero", s.zero, "stage of ZeRO: what the replicas share", {"0", "1", "2", "3", "any"});
  options.add("--hybrid", s.hybrid, "gpt: replicas that share one model; default: all, or those of a node", 1, 1 << 20);
  options.add_flag("--prefetch", s.prefetch,
                   "stage 3 gathers the next layer while one computes (06_fsdp/fsdp); always on with gpt");
  options.add("--micro-batches", s.micro_batches,
              "of a replica; default: 4 per stage or more, 1 without a pipeline; with gpt all that are possible", 1,
              1 << 20);
  options.add("--chunks", s.chunks,
              "gpt: chunks per rank, 1 is 1F1B, more are interleaved; default: all that are possible", 1, 1 << 12);
  options.add("--recompute", s.recompute, "gpt: what the backward pass computes again", {"none", "blocks", "any"});
  options.add_flag("--sequence-parallel,!--no-sequence-parallel", s.sequence_parallel,
                   "gpt: tensor ranks cut the sequence where they do not cut the layers (default: on)");
  options.add_flag("--scatter-gather", s.scatter, "gpt: each tensor rank sends only its share to the next stage");
  options.add("--rows", s.rows, "rows of the table", 1);
  options.add("--json", s.json, "write all plans to this file", {});
}

// ---- what they describe --------------------------------------------------------------------------------------------

// Ends the program if an option of one model is given with the other.
inline void require_options_of_model(const PlanSettings& s) {
  const auto refuse = [&s](const char* name, double value, const char* model) {
    if (value > 0 && s.model != model) usage_error("%s is given; expected --model %s then", name, model);
  };
  refuse("--depth", s.depth, "mlp");
  refuse("--parameters", s.parameters, "mlp");
  refuse("--blocks", s.blocks, "gpt");
  refuse("--heads", s.heads, "gpt");
  refuse("--context", s.context, "gpt");
  refuse("--vocabulary", s.vocabulary, "gpt");
  refuse("--chunks", s.chunks, "gpt");
  refuse("--hybrid", s.hybrid, "gpt");
  refuse("--mlp-width", s.mlp_width, "gpt");
  refuse("--kv-heads", s.kv_heads, "gpt");
  refuse("--gated", s.gated ? 1 : 0, "gpt");
  refuse("--experts", s.experts, "gpt");
  if (s.cuts_sequences() && !s.gpt()) usage_error("--cp is given; expected --model gpt then");
  if (s.attention != "whole" && !s.gpt()) usage_error("--attention is given; expected --model gpt then");
  if (s.recompute != "any" && !s.gpt()) usage_error("--recompute is given; expected --model gpt then");
}

// Ends the program if an option of mixtures is given without experts, or does not fit them.
inline void require_options_of_mixture(const PlanSettings& s) {
  const std::pair<bool, const char*> given[] = {{s.top_k > 0, "--top-k"},
                                                {s.capacity > 0, "--capacity-factor"},
                                                {s.imbalance != 1, "--imbalance"},
                                                {s.spreads_experts(), "--ep"}};
  for (const auto& [is_given, name] : given) {
    if (is_given && s.experts == 0) usage_error("%s is given; expected --experts then", name);
  }
  if (s.top_k > s.experts) usage_error("--top-k is '%d'; expected at most the %d of --experts", s.top_k, s.experts);
  if (s.imbalance < 1) usage_error("--imbalance is below 1; expected a multiple of the mean, such as 1.2");
  if (s.imbalance > 1 && s.capacity > 0) {
    usage_error("--imbalance is given; expected no --capacity-factor then, with which all ranks have as many rows");
  }
}

// Returns the model's shape; without options, a model of 6.7 billion parameters.
inline GptShape make_gpt_shape(const PlanSettings& s) {
  const auto given = [](int value, int otherwise) { return value > 0 ? value : otherwise; };
  GptShape g = {given(s.blocks, 32),    given(s.width, 4096),       given(s.heads, 32),
                given(s.context, 4096), given(s.vocabulary, 32000), s.attention == "blockwise"};
  g.kv_heads = given(s.kv_heads, g.heads);
  g.mlp_width = given(s.mlp_width, 4 * g.width);
  g.gated = s.gated;
  if (s.experts > 0) {
    g.experts = s.experts;
    g.top_k = given(s.top_k, std::min(2, s.experts));
    g.capacity = s.capacity;
    g.imbalance = s.imbalance;
  }
  if (g.width % g.heads != 0) {
    usage_error("--width is '%d'; expected a multiple of the %d of --heads", g.width, g.heads);
  }
  if (g.heads % g.kv_heads != 0) {
    usage_error("--kv-heads is '%d'; expected a divisor of the %d of --heads", g.kv_heads, g.heads);
  }
  return g;
}

inline ModelShape make_model(const Options& options, const PlanSettings& s) {
  require_options_of_model(s);
  require_options_of_mixture(s);
  ModelShape model;
  if (s.gpt()) {
    model.gpt = make_gpt_shape(s);
    model.parameters = gpt_parameters(*model.gpt, model.gpt->experts);
  } else {
    if ((s.width > 0) != (s.depth > 0)) {
      usage_error("%s is given alone; expected --width and --depth", s.width > 0 ? "--width" : "--depth");
    }
    if (s.width > 0 && s.parameters > 0) usage_error("--parameters is given; expected no --width and --depth then");
    if (s.width > 0) {
      model.widths.assign(s.depth + 1, s.width);
    } else if (s.parameters == 0) {
      model.widths = options.layers;
    }
    model.parameters = s.parameters;
    for (int i = 0; i < model.layers(); ++i) model.parameters += (model.widths[i] + 1.0) * model.widths[i + 1];
  }
  const auto is_given = [&s](const std::string& text, const char* value) {
    return text.empty() ? s.gpt() : text == value;
  };
  model.activation = options.activation;
  model.optimizer = is_given(s.optimizer, "adamw") ? OptimizerKind::adamw : OptimizerKind::sgd;
  model.precision = is_given(s.precision, "mixed") ? Precision::mixed : Precision::fp32;
  model.rows = s.global_batch;
  return model;
}

// Reads a link's latency and bandwidth from a file of 00_collectives/bandwidth, which has alpha and beta of a whole
// collective, time = alpha + beta · bytes: alpha is the latency of all its rounds, and beta includes the share of the
// bytes that a rank sends (chapter 00). Throws if the file is of a different kind.
inline Link read_link(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(read_file(path, /*links=*/true));
  const std::string op = json.at("op");
  const double alpha = json.at("alpha_seconds"), beta = json.at("beta_seconds_per_byte");
  const double ranks = json.at("ranks"), factor = json.at("bus_factor");
  if (!(beta > 0) || !(ranks > 1)) throw std::runtime_error("there is nothing to send");
  const double rounds = op == "send_recv" ? 1 : (ranks - 1) * (op == "all_reduce" ? 2 : 1);
  return {alpha / rounds, factor / beta};
}

inline Link make_link(const LinkSettings& s, const LinkSettings& otherwise, const char* option) {
  if (s.file.empty()) {
    return {(s.microseconds > 0 ? s.microseconds : otherwise.microseconds) * kMicro,
            (s.gigabytes > 0 ? s.gigabytes : otherwise.gigabytes) * kGiga};
  }
  try {
    return read_link(s.file);
  } catch (const std::exception&) {
    usage_error(
        "%s is '%s'; expected a file that 00_collectives/bandwidth has written with --json on two or more ranks",
        option, s.file.c_str());
  }
}

inline Cluster make_cluster(const PlanSettings& s) {
  if (s.efficiency > 1) usage_error("--efficiency is above 1; expected a share, such as 0.5");
  const MachineSpec& machine = s.machine == "h100" ? kH100 : kA100;
  const auto given = [](double value, double otherwise) { return value > 0 ? value : otherwise; };
  const double peak = given(s.peak, machine.peak) * kTera;
  return {s.gpus,
          s.gpus_per_node,
          given(s.memory, machine.memory) * kGiga * (s.gpt() ? 1 - s.margin / 100.0 : 1),
          peak,
          peak * given(s.efficiency, s.gpt() ? kProductEfficiency : kMlpEfficiency),
          given(s.memory_bandwidth, machine.memory_bandwidth) * kGiga,
          make_link(s.node, machine.node, "--node-link"),
          make_link(s.network, machine.network, "--network-link")};
}

}  // namespace workshop
