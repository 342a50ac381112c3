// SPDX-License-Identifier: Apache-2.0
// The models whose layers can be cut over the ranks of a tensor-parallel group.
#pragma once

#include <functional>
#include <memory>

#include "05_tensor_parallel/support/tensor_parallel_options.h"
#include "common/nccl/group.h"
#include "model/model.h"
#include "model/positions.h"

namespace workshop {

// Makes the model that --model names, over the ranks of a group, which must outlive it. Ends the job with status 2 for
// alexnet and for sequence parallelism with anything but the language model. For the language model, the number of
// ranks must divide the heads and, with sequence parallelism, the context, and each rank must have at least one word;
// otherwise the job ends with status 2 too. parallel_models.cu is compiled once for the programs of all chapters.
Network make_parallel_network(const Options& options, const Group& group, const TensorParallelOptions& how);

class Attention;
using MakeAttention = std::function<std::shared_ptr<Attention>()>;
// Makes make_parallel_network()'s language model for these positions of each sample (chapter 08). `attention` returns
// the attention of a block, for this rank's heads; call require_heads() first.
Network make_parallel_gpt(const Options& options, const Group& group, const TensorParallelOptions& how,
                          const Positions& positions, const MakeAttention& attention);
// Ends the job with status 2 unless the number of ranks divides that of the heads.
void require_heads(const Options& options, int ranks);

}  // namespace workshop
