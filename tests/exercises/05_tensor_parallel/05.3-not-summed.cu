  launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
