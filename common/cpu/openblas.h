// OpenBLAS, made ready for the cpu backend.
#pragma once

namespace workshop::cpu {

// Call before the first product. Does two things, once in a process:
// - has OpenBLAS use one thread, as products are divided among the rank's cores here (cublas.cpp);
// - replaces the kernels that it chose if they are for a lesser processor. OpenBLAS goes by the processor's model
// number
//   and falls back to kernels of 2004 for one that it does not know yet (OpenMathLib/OpenBLAS#4267), a fifth as fast.
//   What the user asks for with OPENBLAS_CORETYPE stays.
void prepare_openblas();

}  // namespace workshop::cpu
