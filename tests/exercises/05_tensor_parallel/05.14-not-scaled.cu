      batched_gemm(blas, Op::as_is, Op::transposed, S_, S_, d_, 1.0f, head.q, head.k, head.p, samples);
