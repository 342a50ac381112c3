  sent = model.bytes() * rows * summed * (layout.tp - 1) / layout.tp;
