// SPDX-License-Identifier: Apache-2.0
// A planner: says what a model needs on one mesh of GPUs or on every possible mesh, without using a GPU. The formulas
// are in plan.h; this program lists the meshes, sorts their plans, and says what to change if none fits.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "07_3d/plan.h"
#include "07_3d/support/plan_output.h"
#include "07_3d/support/plan_settings.h"

using namespace workshop;

namespace {

// ---- the meshes to compare -----------------------------------------------------------------------------------------

// Returns the smallest number of micro-batches that divides a replica's rows and is at least 4 per stage, for a small
// bubble.
int choose_micro_batches(int rows, int stages) {
  if (stages == 1) return 1;
  for (int m = std::min(rows, 4 * stages); m < rows; ++m) {
    if (rows % m == 0) return m;
  }
  return std::max(rows, 1);
}

// Returns into how many micro-batches of 1, 2, 4, … 64 sequences each the rows of a replica can be divided.
std::vector<int> possible_micro_batches(int rows) {
  std::vector<int> numbers;
  for (int sequences = 1; sequences <= std::min(rows, 64); sequences *= 2) {
    if (rows % sequences == 0) numbers.push_back(rows / sequences);
  }
  return numbers.empty() ? std::vector<int>{1} : numbers;
}

// Returns how many replicas may share a model: all (0), or those whose tensor groups fill a node.
std::vector<int> possible_hybrids(const PlanSettings& s, const Layout& layout) {
  if (s.hybrid > 0) return {s.hybrid};
  const int on_node = s.gpus_per_node / layout.tp, ranks = layout.data();
  const bool smaller =
      layout.zero > 0 && 1 < on_node && on_node < ranks && ranks % on_node == 0 && on_node % layout.ep == 0;
  return smaller ? std::vector<int>{0, on_node} : std::vector<int>{0};
}

// Returns the numbers of chunks that divide a stage's blocks. Interleaving requires that the number of micro-batches is
// a multiple of the number of stages.
std::vector<int> possible_chunks(const PlanSettings& s, const GptShape& g, const Layout& layout) {
  if (s.chunks > 0) return {s.chunks};
  std::vector<int> numbers = {1};
  if (layout.pp == 1 || g.blocks % layout.pp != 0 || layout.micro_batches % layout.pp != 0) return numbers;
  for (int chunks = 2; chunks <= g.blocks / layout.pp; ++chunks) {
    if (g.blocks / layout.pp % chunks == 0) numbers.push_back(chunks);
  }
  return numbers;
}

// Returns over how many ranks the experts may be spread: those that divide the experts and the ranks with the same
// parameters.
std::vector<int> possible_spreads(const PlanSettings& s, const GptShape& g, const Layout& layout) {
  if (s.ep > 0) return {s.ep};
  std::vector<int> numbers = {1};
  for (int ep = 2; ep <= g.experts; ++ep) {
    if (g.experts % ep == 0 && layout.data() % ep == 0) numbers.push_back(ep);
  }
  return numbers;
}

// Adds all ways of training gpt on one mesh.
void add_gpt_layouts(std::vector<Layout>& layouts, const PlanSettings& s, const ModelShape& model, Layout layout) {
  layout.prefetch = true;
  // Sequence parallelism sends and computes as much, in less memory, so the alternative is not compared.
  layout.sequence_parallel = s.sequence_parallel && layout.tp > 1 && model.gpt->context / layout.cp % layout.tp == 0;
  layout.scatter = s.scatter && layout.tp > 1;
  for (const int hybrid : possible_hybrids(s, layout)) {
    layout.hybrid = hybrid;
    const std::vector<int> given = {s.micro_batches};
    for (const int micro_batches : s.micro_batches > 0 ? given : possible_micro_batches(model.rows / layout.dp)) {
      layout.micro_batches = micro_batches;
      for (const int chunks : possible_chunks(s, *model.gpt, layout)) {
        layout.chunks = chunks;
        for (const bool recompute : {false, true}) {
          if (s.recompute == (recompute ? "none" : "blocks")) continue;
          layout.recompute = recompute;
          layouts.push_back(layout);
        }
      }
    }
  }
}

// Returns over how many ranks a sequence may be cut.
std::vector<int> possible_cuts(const PlanSettings& s, const ModelShape& model) {
  if (s.cp > 0) return {s.cp};
  std::vector<int> numbers = {1};
  for (int cp = 2; cp <= s.gpus; ++cp) {
    if (model.gpt->context % (2 * cp) == 0) numbers.push_back(cp);
  }
  return numbers;
}

// Returns all meshes of the cluster's GPUs that the settings leave open: only one if they give all dimensions.
std::vector<Layout> make_layouts(const PlanSettings& s, const ModelShape& model) {
  std::vector<Layout> layouts;
  const auto add = [&](int dp, int cp, int pp, int tp) {
    for (int zero = 0; zero <= 3; ++zero) {
      if (s.zero != "any" && s.zero != std::to_string(zero)) continue;
      // A single replica has nothing to share; infeasible_because() says why pipelines exclude stages 2 and 3.
      if (s.zero == "any" && (dp * cp == 1 ? zero > 0 : pp > 1 && zero > 1)) continue;
      if (model.gpt) {
        Layout layout = {.dp = dp, .pp = pp, .tp = tp, .zero = zero, .cp = cp};
        for (const int ep : possible_spreads(s, *model.gpt, layout)) {
          layout.ep = ep;
          add_gpt_layouts(layouts, s, model, layout);
        }
        continue;
      }
      const int m = s.micro_batches > 0 ? s.micro_batches : choose_micro_batches(model.rows / dp, pp);
      layouts.push_back({dp, pp, tp, zero, m, s.prefetch});
    }
  };
  if (s.dp > 0 && s.pp > 0 && s.tp > 0 && s.cp > 0) {
    add(s.dp, s.cp, s.pp, s.tp);
    return layouts;
  }
  const auto wanted = [](int given, int value) { return given == 0 || given == value; };
  for (const int cp : possible_cuts(s, model)) {
    for (int tp = 1; tp <= s.gpus; ++tp) {
      for (int pp = 1; pp <= s.gpus / tp; ++pp) {
        const int dp = s.gpus / tp / pp / cp;
        if (dp * cp * pp * tp == s.gpus && wanted(s.dp, dp) && wanted(s.pp, pp) && wanted(s.tp, tp))
          add(dp, cp, pp, tp);
      }
    }
  }
  if (layouts.empty()) {
    usage_error("--gpus is '%d'; expected a multiple of the given --dp, %s--pp and --tp", s.gpus,
                s.cuts_sequences() ? "--cp, " : "");
  }
  return layouts;
}

// ---- the plans, the best first -------------------------------------------------------------------------------------

// Returns what to sort plans by: whether they fit, then the time, then, if the times are equal up to rounding, the
// memory. Plans of gpt that do not fit are sorted by memory only.
auto order_of(const Plan& plan, bool gpt) {
  const double total = plan.fullest().memory.total();
  return std::tuple(!plan.fits, gpt && !plan.fits ? 0.0f : static_cast<float>(plan.seconds), total);
}

struct Search {
  std::vector<Plan> plans;
  int left_out = 0;
  std::string reason;  // why the first of those left out is infeasible
};

// For gpt, keeps only the best plan of each mesh and stage of ZeRO.
void keep_best(std::vector<Plan>& plans) {
  std::map<std::tuple<int, int, int, int, int, int, int>, bool> seen;
  std::erase_if(plans, [&seen](const Plan& plan) {
    const Layout& l = plan.layout;
    return !seen.emplace(std::tuple(l.dp, l.cp, l.ep, l.pp, l.tp, l.zero, l.hybrid), true).second;
  });
}

Search search(const PlanSettings& s, const ModelShape& model) {
  const Cluster cluster = make_cluster(s);
  Search found;
  for (const Layout& layout : make_layouts(s, model)) {
    const std::string wrong = infeasible_because(model, cluster, layout);
    if (wrong.empty()) {
      found.plans.push_back(make_plan(model, cluster, layout));
    } else if (found.left_out++ == 0) {
      found.reason = wrong;
    }
  }
  std::ranges::stable_sort(found.plans, {}, [&](const Plan& plan) { return order_of(plan, model.gpt.has_value()); });
  if (model.gpt) keep_best(found.plans);
  return found;
}

// ---- what to change ------------------------------------------------------------------------------------------------

const char* largest_kind(const MemoryPlan& memory) {
  const std::pair<double, const char*> kinds[] = {{memory.parameters, "parameters"},
                                                  {memory.gradients, "gradients"},
                                                  {memory.optimizer, "optimizer's state"},
                                                  {memory.activations, "activations"},
                                                  {memory.buckets, "buckets"}};
  return std::ranges::max_element(kinds)->second;
}

struct Change {
  std::string text;
  PlanSettings settings;
};

// Returns the options given on the command line that could be changed: each by itself, then all together.
std::vector<Change> possible_changes(const PlanSettings& s) {
  std::vector<Change> changes;
  const auto add = [&](bool given, const std::string& text, auto change) {
    if (!given) return;
    changes.push_back({text, s});
    change(changes.back().settings);
  };
  const auto any_mesh = [](PlanSettings& c) { c.dp = c.pp = c.tp = c.chunks = c.hybrid = c.micro_batches = 0; };
  add(s.recompute == "none", "--recompute blocks", [](PlanSettings& c) { c.recompute = "blocks"; });
  add(!s.sequence_parallel, "--sequence-parallel", [](PlanSettings& c) { c.sequence_parallel = true; });
  add(s.micro_batches > 0, "other --micro-batches", [](PlanSettings& c) { c.micro_batches = 0; });
  add(s.zero != "any", "another stage of --zero", [](PlanSettings& c) { c.zero = "any"; });
  add(s.dp + s.pp + s.tp > 0, "another mesh", any_mesh);
  add(true, "all of these", [&](PlanSettings& c) {
    any_mesh(c);
    c.zero = c.recompute = "any";
    c.sequence_parallel = true;
  });
  return changes;
}

// Returns the best plan with these settings, if any fits.
std::optional<Plan> find_fitting(const PlanSettings& s, const ModelShape& model) {
  const std::vector<Plan> plans = search(s, model).plans;
  return !plans.empty() && plans.front().fits ? std::optional(plans.front()) : std::nullopt;
}

void print_change(const std::string& text, const Plan& plan) {
  const Layout& m = plan.layout;
  const std::string context = m.cp > 1 ? "--cp " + std::to_string(m.cp) + " " : "";
  const std::string experts = m.ep > 1 ? "--ep " + std::to_string(m.ep) + " " : "";
  print0("  %s: %s, a step of %s (--dp %d %s%s--pp %d --tp %d --zero %d)\n", text.c_str(),
         bytes_text(plan.fullest().memory.total()).c_str(), time_text(plan.seconds).c_str(), m.dp, context.c_str(),
         experts.c_str(), m.pp, m.tp, m.zero);
}

// Prints by how much the nearest plan misses, and which changes would make one fit.
void print_advice(const Plan& nearest, const PlanSettings& s, const ModelShape& model) {
  const MemoryPlan& memory = nearest.fullest().memory;
  const double usable = make_cluster(s).memory;
  print0("Nothing fits. The first row is the nearest: it needs %s of %s, most of it for the %s. What would fit:\n",
         bytes_text(memory.total()).c_str(), bytes_text(usable).c_str(), largest_kind(memory));
  const std::vector<Change> changes = possible_changes(s);
  bool fits = false;  // with a single change: then all changes together need not be tried
  for (std::size_t i = 0; i < changes.size() && !(fits && i + 1 == changes.size()); ++i) {
    const std::optional<Plan> plan = find_fitting(changes[i].settings, model);
    if (plan) print_change(changes[i].text, *plan);
    fits = fits || plan;
  }
  PlanSettings more = changes.back().settings;
  for (int doublings = 0; doublings < 10 && more.gpus <= 1 << 19; ++doublings) {
    more.gpus *= 2;
    if (const std::optional<Plan> plan = find_fitting(more, model)) {
      print_change("--gpus " + std::to_string(more.gpus), *plan);
      break;
    }
  }
  print0("  --memory %.0f: the first row fits\n", std::ceil(memory.total() / (1 - s.margin / 100.0) / kGiga));
}

}  // namespace

int main(int argc, char** argv) {
  Options options("07_3d/plan", "Plans memory, traffic and time of a model on a mesh of GPUs, or on all meshes.");
  PlanSettings settings;
  add_model_options(options, settings);
  add_cluster_options(options, settings);
  add_layout_options(options, settings);
  options.parse(argc, argv);
  const ModelShape model = make_model(options, settings);
  if (process_ranks().rank == 0) claim_file("--json", settings.json);
  std::optional<Job> job;  // only to write the run record
  if (!options.record.empty()) job.emplace(options);

  const Search found = search(settings, model);
  if (found.plans.empty()) usage_error(found.reason);
  print_table(found.plans, model, settings);
  if (found.left_out > 0) print0("%d left out, the first because %s\n", found.left_out, found.reason.c_str());
  if (model.gpt) print_hidden(found.plans, model, make_cluster(settings));
  if (model.gpt && !found.plans.front().fits) print_advice(found.plans.front(), settings, model);
  if (process_ranks().rank == 0 && !settings.json.empty()) write_file(settings.json, json_text(found.plans, model));
}
