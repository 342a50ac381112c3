  if (s < layout.pp - 1) sent += model.bytes() * rows / layout.micro_batches * part.out;
  if (s > 0) sent += model.bytes() * rows / layout.micro_batches * part.in;
