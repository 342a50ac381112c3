// SPDX-License-Identifier: Apache-2.0
// The options of fully sharded data parallelism. They follow PyTorch's FSDP.
#pragma once

#include <string>

#include "common/base/check.h"
#include "common/options/options.h"

namespace workshop {

// When the gather for a pass is enqueued: before the work of the previous pass (pre), between that work and its
// reduction (post), or when the pass itself begins (none). PyTorch's BACKWARD_PRE, BACKWARD_POST and None.
enum class Prefetch { pre, post, none };

struct FsdpOptions {
  int unit_layers = 1;                // fewest layers per unit
  int min_unit_parameters = 0;        // fewest parameters per unit
  int shard_group = 0;                // ranks that share one copy of the model; 0: all
  bool reshard_after_forward = true;  // free a unit after its forward pass; else after its backward pass
  bool prefetch = true;               // gather the next unit of the forward pass during the work on the current one
  std::string backward_prefetch;      // pre, post or none, for the backward pass; "": as `prefetch` says
  bool sync_module_states = false;    // start from rank 0's parameters
  bool cpu_offload = false;           // keep the shards and the optimizer on the host

  void add_to(Options& options) {
    options.add("--unit-layers", unit_layers, "layers per unit, gathered together", 1);
    options.add("--min-unit-parameters", min_unit_parameters, "fewest parameters per unit, except the last", 0);
    options.add("--hybrid", shard_group, "ranks that share one copy of the model; default: all", 1);
    options.add_flag("--reshard-after-forward,!--no-reshard-after-forward", reshard_after_forward,
                     "free a unit after its forward pass, not after its backward pass (default: on)");
    options.add_flag("--prefetch,!--no-prefetch", prefetch, "gather the next unit during the work (default: on)");
    options.add("--backward-prefetch", backward_prefetch,
                "gather the next unit of the backward pass before the work on this one, after it, or when it is "
                "needed; default: pre, with --no-prefetch none",
                {"pre", "post", "none"});
    options.add_flag("--sync-module-states", sync_module_states, "start from rank 0's parameters, which it broadcasts");
    options.add_flag("--cpu-offload", cpu_offload, "keep the shards and the optimizer on the host");
  }

  // Sets defaults that depend on the number of ranks, and ends the program if options contradict each other. Call after
  // Options::parse().
  void complete(int world) {
    if (shard_group == 0) shard_group = world;
    if (world % shard_group != 0) {
      usage_error("--hybrid is '%d'; expected a number that divides the %d rank%s", shard_group, world,
                  world == 1 ? "" : "s");
    }
  }

  Prefetch backward() const {
    if (backward_prefetch.empty()) return prefetch ? Prefetch::pre : Prefetch::none;
    return backward_prefetch == "pre" ? Prefetch::pre : backward_prefetch == "post" ? Prefetch::post : Prefetch::none;
  }
};

}  // namespace workshop
