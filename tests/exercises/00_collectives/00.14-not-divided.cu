  const double others = world - 1;
  if (op == Op::all_reduce) factor = 2 * others;
  if (op == Op::all_gather || op == Op::reduce_scatter) factor = others;
  if (op == Op::broadcast || op == Op::send_recv) factor = 1;
