  const double half = whole * (layout.dp - 1) / layout.dp;
  if (layout.zero <= 1) sent = half;
  if (layout.zero == 2) sent = layout.micro_batches * half;
  if (layout.zero == 3) sent = 2 * layout.micro_batches * half;
