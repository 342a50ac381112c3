      batched_gemm(blas, Op::transposed, Op::as_is, S_, d_, S_, 1.0f, head.p, d.context, d.v, samples);
      batched_gemm(blas, Op::as_is, Op::as_is, S_, d_, S_, scale, d.p, head.k, d.q, samples);
      batched_gemm(blas, Op::as_is, Op::as_is, S_, d_, S_, scale, d.p, head.q, d.k, samples);
