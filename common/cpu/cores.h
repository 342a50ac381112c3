// What the threads that stand for a device need of the processor.
#pragma once

namespace workshop::cpu {

// Has the calling thread take numbers too small for a normal float32 (below 1.2e-38) as zero. A processor computes with
// them up to a hundred times more slowly, which a GPU does not; a training that diverges is full of them.
void flush_denormals();

}  // namespace workshop::cpu
