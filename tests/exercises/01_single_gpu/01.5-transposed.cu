  gemm(blas, Op::as_is, Op::transposed, rows, l.in, l.out, dy, l.weight, 0, dx);
