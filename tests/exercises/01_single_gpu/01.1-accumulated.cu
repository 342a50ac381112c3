  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 1, y);
