  gemm(blas, Op::transposed, Op::as_is, l.in, l.out, rows, x, dy, accumulate, l.weight_grad);
