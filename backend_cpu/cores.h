// SPDX-License-Identifier: Apache-2.0
// Settings of the processor for the threads that act as a device, and the number of ranks that share the machine.
#pragma once

namespace workshop::cpu {

// Makes the calling thread treat numbers too small for a normal float32 (below 1.2e-38) as zero. A processor, unlike a
// GPU, is many times slower with them, and a diverging training produces many of them.
void flush_denormals();

// Number of ranks that a launcher has started on this node; 1 without a launcher.
int ranks_of_node();

}  // namespace workshop::cpu
