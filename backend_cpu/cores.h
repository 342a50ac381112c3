// SPDX-License-Identifier: Apache-2.0
// What the threads that stand for a device need of the processor, and who shares the machine.
#pragma once

namespace workshop::cpu {

// Has the calling thread take numbers too small for a normal float32 (below 1.2e-38) as zero. A processor computes with
// them many times more slowly, which a GPU does not; a training that diverges is full of them.
void flush_denormals();

// The ranks that a launcher has started on this node; 1 without one.
int ranks_of_node();

}  // namespace workshop::cpu
