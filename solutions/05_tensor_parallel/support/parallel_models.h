// SPDX-License-Identifier: Apache-2.0
// The models whose layers can be sharded across the ranks of a tensor-parallel group.
#pragma once

#include "05_tensor_parallel/support/tensor_parallel_options.h"
#include "common/nccl/group.h"
#include "model/model.h"

namespace workshop {

// What --model names, over the ranks of a group, which must outlive it. Ends the job with status 2 for alexnet, and
// unless the ranks divide the heads of the language model and, with sequence parallelism, which only that has, the
// context, and each has a word. In parallel_models.cu, which is compiled once for the programs of all chapters.
Network make_parallel_network(const Options& options, const Group& group, const TensorParallelOptions& how);

}  // namespace workshop
