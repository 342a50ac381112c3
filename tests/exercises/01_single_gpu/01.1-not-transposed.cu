  gemm(blas, Op::as_is, Op::as_is, rows, l.out, l.in, x, l.weight, 0, y);
