// SPDX-License-Identifier: Apache-2.0
// A planner on paper: what a model needs on a mesh of GPUs, or on every mesh that there is, without a GPU at hand. The
// formulas are in plan.h; here are the options, the meshes to compare, and the table.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "common/files.h"
#include "common/job.h"
#include "plan.h"

using namespace workshop;

namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;

struct LinkSettings {
  double microseconds, gigabytes;
  std::string file;
};

// As on the command line; 0 and "any" leave open what is to be compared.
struct Settings {
  int width = 0, depth = 0, global_batch = 1024;
  double parameters = 0;
  std::string precision = "fp32";
  int gpus = 8, gpus_per_node = 8;
  double memory = 80, peak = 312, efficiency = 0.5;
  LinkSettings node{5, 250, ""}, network{15, 25, ""};
  int dp = 0, pp = 0, tp = 0, micro_batches = 0;
  std::string zero = "any";
  bool prefetch = false;
  int rows = 20;
  std::string json;
};

void add_options(Options& options, Settings& s) {
  // Nothing is trained: of the shared options those remain that say what the model is.
  options.without({"--lr", "--weight-decay", "--samples", "--batch-size", "--epochs", "--max-steps", "--shuffle",
                   "--seed", "--model-seed", "--log-every", "--timeline"});
  options.add("--width", s.width, "with --depth, in place of --layers: so many layers of this width", 1);
  options.add("--depth", s.depth, "layers of --width", 1, 1 << 16);
  options.add("--parameters", s.parameters, "in place of --layers: a number of parameters alone", 0.0);
  options.add("--global-batch", s.global_batch, "rows a step, over all replicas", 1, 1 << 24);
  options.add("--precision", s.precision, "mixed: 2 bytes a value, and the optimizer's own copy in 4",
              {"fp32", "mixed"});
  options.add("--gpus", s.gpus, "GPUs of the cluster", 1, 1 << 20);
  options.add("--gpus-per-node", s.gpus_per_node, "GPUs of a node", 1, 1 << 20);
  options.add("--memory", s.memory, "GB (10^9 bytes) of a GPU", 0.0);
  options.add("--peak", s.peak, "10^12 operations a second of a GPU", 0.0);
  options.add("--efficiency", s.efficiency, "share of the peak that is reached", 0.0);
  const auto add_link = [&options](const std::string& name, LinkSettings& link, const std::string& where) {
    options.add("--" + name + "-latency", link.microseconds, "microseconds a message " + where, 0.0);
    options.add("--" + name + "-bandwidth", link.gigabytes, "GB/s of a GPU in one direction " + where, 0.0);
    options.add("--" + name + "-link", link.file, "both from what 00_collectives/bandwidth has written with --json",
                {});
  };
  add_link("node", s.node, "within a node");
  add_link("network", s.network, "between nodes");
  options.add("--dp", s.dp, "data-parallel replicas; default: all that are possible", 1, 1 << 20);
  options.add("--pp", s.pp, "pipeline stages; default: all that are possible", 1, 1 << 20);
  options.add("--tp", s.tp, "ranks of a tensor group; default: all that are possible", 1, 1 << 20);
  options.add("--zero", s.zero, "what the replicas share out: stage 0 to 3 of ZeRO", {"0", "1", "2", "3", "any"});
  options.add_flag("--prefetch", s.prefetch, "stage 3 gathers the next layer behind the work on one (06_fsdp/fsdp)");
  options.add("--micro-batches", s.micro_batches, "of a replica; default: 4 a stage or more, 1 without a pipeline", 1,
              1 << 20);
  options.add("--rows", s.rows, "rows of the table", 1);
  options.add("--json", s.json, "write all plans to this file", {});
}

// ---- what the options say ------------------------------------------------------------------------------------------

ModelShape make_model(const Options& options, const Settings& s) {
  ModelShape model;
  if ((s.width > 0) != (s.depth > 0)) {
    usage_error(std::string(s.width > 0 ? "--width" : "--depth") + " is given alone; expected --width and --depth");
  }
  if (s.width > 0 && s.parameters > 0) usage_error("--parameters is given; expected no --width and --depth then");
  if (s.width > 0) {
    model.widths.assign(s.depth + 1, s.width);
  } else if (s.parameters == 0) {
    model.widths = options.layers;
  }
  model.parameters = s.parameters;
  for (int i = 0; i < model.layers(); ++i) model.parameters += (model.widths[i] + 1.0) * model.widths[i + 1];
  model.activation = options.activation;
  model.optimizer = options.optimizer;
  model.precision = s.precision == "mixed" ? Precision::mixed : Precision::fp32;
  model.rows = s.global_batch;
  return model;
}

// The number after "name": in the text of a JSON file.
std::optional<double> find_number(const std::string& text, const std::string& name) {
  const std::size_t key = text.find("\"" + name + "\":");
  if (key == std::string::npos) return std::nullopt;
  const char* start = text.c_str() + text.find(':', key) + 1;
  char* end = nullptr;
  const double value = std::strtod(start, &end);
  return end == start ? std::nullopt : std::optional(value);
}

// A link's latency and bandwidth. A file has alpha and beta of a whole collective, t = alpha + beta · bytes: alpha is
// the latency of all its rounds, and beta the time for the share of the bytes that a rank sends (chapter 00).
Link make_link(const LinkSettings& s, const std::string& option) {
  if (s.file.empty()) return {s.microseconds * kMicro, s.gigabytes * kGiga};
  std::string text;
  try {
    text = read_file(s.file, /*links=*/true);
  } catch (const std::runtime_error&) {  // without the numbers, which the error below asks for
  }
  const auto alpha = find_number(text, "alpha_seconds"), beta = find_number(text, "beta_seconds_per_byte");
  const auto ranks = find_number(text, "ranks"), factor = find_number(text, "bus_factor");
  if (!alpha || !beta || !ranks || !factor || !(*beta > 0) || !(*ranks > 1)) {
    usage_error(option + " is '" + s.file +
                "'; expected a file that 00_collectives/bandwidth has written with --json on two or more ranks");
  }
  const bool all_reduce = text.find("\"all_reduce\"") != std::string::npos;
  const bool send = text.find("\"send_recv\"") != std::string::npos;
  const double rounds = send ? 1 : (*ranks - 1) * (all_reduce ? 2 : 1);
  return {*alpha / rounds, *factor / *beta};
}

Cluster make_cluster(const Settings& s) {
  if (s.efficiency > 1) usage_error("--efficiency is above 1; expected a share, such as 0.5");
  return {s.gpus,
          s.gpus_per_node,
          s.memory * kGiga,
          s.peak * kTera * s.efficiency,
          make_link(s.node, "--node-link"),
          make_link(s.network, "--network-link")};
}

// ---- the meshes to compare -----------------------------------------------------------------------------------------

// The fewest micro-batches that make the bubble small, 4 a stage or more, and divide the rows of a replica.
int choose_micro_batches(int rows, int stages) {
  if (stages == 1) return 1;
  for (int m = std::min(rows, 4 * stages); m < rows; ++m) {
    if (rows % m == 0) return m;
  }
  return std::max(rows, 1);
}

// All meshes of the cluster's GPUs that the settings leave open; where they leave nothing open, that one.
std::vector<Layout> make_layouts(const Settings& s, const ModelShape& model) {
  std::vector<Layout> layouts;
  const auto add = [&](int dp, int pp, int tp) {
    for (int zero = 0; zero <= 3; ++zero) {
      if (s.zero != "any" && s.zero != std::to_string(zero)) continue;
      // One replica shares nothing out, and why_not() has the reason for pipelines.
      if (s.zero == "any" && (dp == 1 ? zero > 0 : pp > 1 && zero > 1)) continue;
      const int m = s.micro_batches > 0 ? s.micro_batches : choose_micro_batches(model.rows / dp, pp);
      layouts.push_back({dp, pp, tp, zero, m, s.prefetch});
    }
  };
  if (s.dp > 0 && s.pp > 0 && s.tp > 0) {
    add(s.dp, s.pp, s.tp);
    return layouts;
  }
  for (int tp = 1; tp <= s.gpus; ++tp) {
    for (int pp = 1; pp <= s.gpus / tp; ++pp) {
      const int dp = s.gpus / tp / pp;
      const bool wanted = (s.dp == 0 || s.dp == dp) && (s.pp == 0 || s.pp == pp) && (s.tp == 0 || s.tp == tp);
      if (dp * pp * tp == s.gpus && wanted) add(dp, pp, tp);
    }
  }
  if (layouts.empty()) {
    usage_error("--gpus is '" + std::to_string(s.gpus) + "'; expected a multiple of the given --dp, --pp and --tp");
  }
  return layouts;
}

// ---- output --------------------------------------------------------------------------------------------------------

// "31.4 GB", or "1.5 ms": a number with the largest unit that leaves at least 1.
std::string with_unit(double value, const std::vector<const char*>& units) {
  if (value == 0) return "-";
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < units.size(); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
  return text;
}
std::string bytes_text(double bytes) { return with_unit(bytes, {"B", "kB", "MB", "GB", "TB"}); }
std::string time_text(double seconds) { return with_unit(seconds * 1e6, {"us", "ms", "s"}); }

void print_row(const Plan& plan) {
  const Layout& m = plan.layout;
  const MemoryPlan& memory = plan.fullest().memory;
  Traffic most;
  for (const StagePlan& stage : plan.stages) {
    most.tensor = std::max(most.tensor, stage.sent.tensor);
    most.data = std::max(most.data, stage.sent.data);
    most.pipeline = std::max(most.pipeline, stage.sent.pipeline);
  }
  print0("%4d %3d %3d %4d %4d |", m.dp, m.pp, m.tp, m.zero, m.micro_batches);
  for (const double bytes :
       {memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.buckets, memory.total()}) {
    print0(" %8s", bytes_text(bytes).c_str());
  }
  print0(" |");
  for (const double bytes : {most.tensor, most.data, most.pipeline}) print0(" %8s", bytes_text(bytes).c_str());
  print0(" | %5.1f %% %8s  %s\n", 100 * plan.bubble, time_text(plan.seconds).c_str(), plan.fits ? "fits" : "too large");
}

void print_table(const std::vector<Plan>& plans, const ModelShape& model, const Cluster& cluster, int rows) {
  print0("%.4g parameters, %d rows a step; %d GPUs of %s, %d a node\n", model.parameters, model.rows, cluster.gpus,
         bytes_text(cluster.memory).c_str(), cluster.gpus_per_node);
  print0("%22s | %-53s | %-26s |\n", "mesh", "held by a GPU of the fullest stage", "sent by a GPU in a step");
  print0("%4s %3s %3s %4s %4s | %8s %8s %8s %8s %8s %8s | %8s %8s %8s | %7s %8s\n", "dp", "pp", "tp", "zero", "m-b",
         "params", "grads", "optim", "activ", "buckets", "total", "tensor", "data", "pipeline", "bubble", "step");
  for (std::size_t i = 0; i < plans.size() && i < static_cast<std::size_t>(rows); ++i) print_row(plans[i]);
  if (plans.size() > static_cast<std::size_t>(rows)) {
    print0("and %zu more (--rows)\n", plans.size() - static_cast<std::size_t>(rows));
  }
}

void write_stage(std::ostream& json, const StagePlan& stage) {
  const MemoryPlan& memory = stage.memory;
  json << "{\"memory\": {\"parameters\": " << memory.parameters << ", \"gradients\": " << memory.gradients
       << ", \"optimizer\": " << memory.optimizer << ", \"activations\": " << memory.activations
       << ", \"buckets\": " << memory.buckets << "}, \"sent\": {\"tensor\": " << stage.sent.tensor
       << ", \"data\": " << stage.sent.data << ", \"pipeline\": " << stage.sent.pipeline << "}}";
}

std::string json_text(const std::vector<Plan>& plans, const ModelShape& model) {
  std::ostringstream json;
  json.precision(15);
  json << "{\"parameters\": " << model.parameters << ", \"plans\": [";
  const char* separator = "\n";
  for (const Plan& plan : plans) {
    const Layout& layout = plan.layout;
    json << separator << " {\"dp\": " << layout.dp << ", \"pp\": " << layout.pp << ", \"tp\": " << layout.tp
         << ", \"zero\": " << layout.zero << ", \"micro_batches\": " << layout.micro_batches
         << ", \"fits\": " << (plan.fits ? "true" : "false") << ", \"bubble\": " << plan.bubble
         << ", \"seconds_per_step\": " << plan.seconds << ", \"stages\": [";
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      json << (s > 0 ? ",\n  " : "\n  ");
      write_stage(json, plan.stages[s]);
    }
    json << "]}";
    separator = ",\n";
  }
  json << "]}\n";
  return json.str();
}

}  // namespace

int main(int argc, char** argv) {
  Options options("07_3d/plan", "Plans memory, traffic and time of a model on a mesh of GPUs, or on all meshes.");
  Settings settings;
  add_options(options, settings);
  options.parse(argc, argv);
  const ModelShape model = make_model(options, settings);
  const Cluster cluster = make_cluster(settings);
  if (process_ranks().rank == 0) check_writable("--json", settings.json);
  std::optional<Job> job;  // a job writes the run record; without one there is nothing to start
  if (!options.record.empty()) job.emplace(options);

  std::vector<Plan> plans;
  std::string reason;  // why the first one of those left out is impossible
  int left_out = 0;
  for (const Layout& layout : make_layouts(settings, model)) {
    const std::string wrong = why_not(model, cluster, layout);
    if (wrong.empty()) {
      plans.push_back(make_plan(model, cluster, layout));
    } else if (left_out++ == 0) {
      reason = wrong;
    }
  }
  if (plans.empty()) usage_error(reason);
  // What fits first, then the fastest; of equally fast ones, up to rounding, the one that holds the least.
  std::ranges::stable_sort(plans, {}, [](const Plan& plan) {
    return std::tuple(!plan.fits, static_cast<float>(plan.seconds), plan.fullest().memory.total());
  });
  print_table(plans, model, cluster, settings.rows);
  if (left_out > 0) print0("%d left out, the first because %s\n", left_out, reason.c_str());
  if (process_ranks().rank == 0 && !settings.json.empty()) write_file(settings.json, json_text(plans, model));
}
