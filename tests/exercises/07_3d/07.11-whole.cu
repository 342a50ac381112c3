  if (layout.dp > 1) {
    if (layout.zero <= 1) sent = 2 * whole;
    if (layout.zero == 2) sent = (layout.micro_batches + 1) * whole;
    if (layout.zero == 3) sent = 3 * layout.micro_batches * whole;
  }
