  sent = model.bytes() * model.rows * summed * 2 * (layout.tp - 1) / layout.tp;
