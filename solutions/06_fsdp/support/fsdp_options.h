// SPDX-License-Identifier: Apache-2.0
// The options of fully sharded data parallelism, as PyTorch's FSDP has them.
#pragma once

#include <string>

#include "common/base/check.h"
#include "common/options/options.h"

namespace workshop {

// When the gather of a pass is enqueued: before the work of the pass before it, between that and its reduction, or when
// its own work begins. PyTorch's BACKWARD_PRE, BACKWARD_POST and None.
enum class Prefetch { pre, post, none };

struct FsdpOptions {
  int unit_layers = 1;                // layers of a unit, at least
  int min_unit_parameters = 0;        // its parameters, at least
  int shard_group = 0;                // ranks that share one model; 0: all
  bool reshard_after_forward = true;  // free a unit after its forward pass; else after its backward pass
  bool prefetch = true;               // gather the next unit of the forward pass while one is worked on
  std::string backward_prefetch;      // the same for the backward pass; "": as `prefetch`
  bool sync_module_states = false;    // start from rank 0's parameters
  bool cpu_offload = false;           // keep the shards and the optimizer on the host

  void add_to(Options& options) {
    options.add("--unit-layers", unit_layers, "layers that are gathered together", 1);
    options.add("--min-unit-parameters", min_unit_parameters, "parameters that a unit has at least, but the last", 0);
    options.add("--hybrid", shard_group, "ranks that share one model; default: all", 1);
    options.add_flag("--reshard-after-forward,!--no-reshard-after-forward", reshard_after_forward,
                     "free a unit after its forward pass, not after its backward pass (default: on)");
    options.add_flag("--prefetch,!--no-prefetch", prefetch, "gather the next unit behind the work (default: on)");
    options.add("--backward-prefetch", backward_prefetch,
                "gather the next unit of the backward pass before this one's work or after it; default: pre, with "
                "--no-prefetch none",
                {"pre", "post", "none"});
    options.add_flag("--sync-module-states", sync_module_states, "start from rank 0's parameters, which it broadcasts");
    options.add_flag("--cpu-offload", cpu_offload, "keep the shards and the optimizer on the host");
  }

  // Fills in what is not given, and ends the program on what does not fit together. Call after Options::parse().
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
