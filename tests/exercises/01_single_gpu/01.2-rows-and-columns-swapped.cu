  launch(add_bias, rows * l.out, stream, y, l.bias, l.out, rows);
