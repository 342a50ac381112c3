// SPDX-License-Identifier: Apache-2.0
// The language model, for some of the positions of each sample. context_models.cu is compiled once for all programs.
#pragma once

#include <memory>

#include "08_context_parallel/sequence.h"
#include "common/nccl/group.h"
#include "common/options/options.h"
#include "model/model.h"

namespace workshop {

class Attention;

// Makes chapter 01's language model for these positions of each sample. All blocks share the attention.
Network make_context_network(const Options& options, const Positions& mine,
                             const std::shared_ptr<Attention>& attention);

// The same with ring attention over the context group and with its layers cut over the tensor group, by chapter 05.
// Ends the job with status 2 if they cannot be cut. The groups must outlive the network.
Network make_ring_network(const Options& options, const SequenceCut& cut, const Group& context, const Group& tensor,
                          bool sequence_parallel);

}  // namespace workshop
