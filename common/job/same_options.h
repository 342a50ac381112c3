// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>
#include <vector>

namespace workshop {

class Options;

// Ends the job with status 2 and one line unless all ranks run the same program with the same options. Ranks that
// differ, for example in the learning rate or the number of steps, would otherwise train on with wrong results, or
// hang. Collective.
void require_same_options(const Options& options, ncclComm_t world);

// Returns what differs: "--lr is 0.1 on rank 0 and 0.2 on rank 2", or "" if nothing does. `texts`: the options of each
// rank as a JSON object, with names as keys. What may differ changes no result: --log-every, --peak-tflops, --record,
// --timeline, --verbose, --workers, and the paths of data, which nodes may keep in different places.
std::string difference_in_options(const std::vector<std::string>& texts);

}  // namespace workshop
