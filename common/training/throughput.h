// SPDX-License-Identifier: Apache-2.0
// The speed of training, and the utilization of the devices.
#pragma once

namespace workshop {

// Measures the operations per second of this rank's device in a product of large matrices of random numbers, float32 or
// bfloat16. Takes about ten milliseconds on the cpu backend, and a tenth of a second on a GPU. Returns 0 if the
// training has left no memory for the matrices.
double measured_peak(bool bfloat16s);

// Prints on rank 0 the tokens and operations per second of all ranks together, and the model FLOP utilization
// (Chowdhery et al., PaLM, 2022): the share of what the devices could do. `operations`: the model's operations per
// token, without recomputation. `peak`: operations per second that one device could do; 0 if unknown.
void print_throughput(double tokens_a_second, double operations, int ranks, double peak);

}  // namespace workshop
