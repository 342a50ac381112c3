      batched_gemm(blas, Op::transposed, Op::as_is, S_, d_, S_, 1.0f, head.p, head.v, head.context, samples);
