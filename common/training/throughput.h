// SPDX-License-Identifier: Apache-2.0
// How fast a model is trained, and how much of the machine that takes.
#pragma once

namespace workshop {

// Operations a second that this rank's device reaches in a matrix product that keeps the cores of a rank busy, in
// float32. Takes some ten milliseconds on the cpu backend. A GPU can do more than it shows here.
double measured_peak();

// Prints, on rank 0, tokens and operations a second of all ranks together, and the share of what the ranks' devices
// could do (model FLOP utilization; Chowdhery et al., PaLM, 2022): `operations` are those of the model for a token,
// without what is recomputed, `peak` those that one device could do a second.
void print_throughput(double tokens_a_second, double operations, int ranks, double peak);

}  // namespace workshop
