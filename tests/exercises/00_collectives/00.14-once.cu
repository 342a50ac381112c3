  const double others = static_cast<double>(world - 1) / world;
  if (op == Op::all_reduce || op == Op::all_gather || op == Op::reduce_scatter) factor = others;
  if (op == Op::broadcast || op == Op::send_recv) factor = 1;
