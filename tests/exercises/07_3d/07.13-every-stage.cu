  sent = model.bytes() * rows * (part.out + part.in);
