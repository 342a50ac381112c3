      batched_gemm(blas, Op::as_is, Op::transposed, S_, S_, d_, 1.0f, d.context, head.k, d.p, samples);
