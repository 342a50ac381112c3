// SPDX-License-Identifier: Apache-2.0
// The option --partition: what the partition of the layers balances.
#pragma once

#include <string>

#include "03_model_parallel/model_parallel.h"
#include "common/options/options.h"

namespace workshop {

// Uniform for an MLP: its layers differ less than the embedding and the head of a language model differ from the
// blocks, and less than the layers of AlexNet, which the course balances by their parameters.
inline Partition default_partition(const Options& options) {
  return options.model == ModelKind::mlp ? Partition::uniform : Partition::parameters;
}

// Adds the option. An empty `partition` afterwards means the default.
inline void add_partition(Options& options, std::string& partition, const std::string& parts) {
  options.add("--partition", partition,
              "what the " + parts +
                  " get equal shares of: layers, parameters, or the time that a measurement at the start finds; "
                  "default: parameters, mlp: uniform",
              {"uniform", "parameters", "time"});
}
inline Partition partition_of(const std::string& partition, const Options& options) {
  if (partition.empty()) return default_partition(options);
  if (partition == "time") return Partition::time;
  return partition == "uniform" ? Partition::uniform : Partition::parameters;
}

}  // namespace workshop
