  launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
  NCCL_CHECK(ncclAllReduce(y, y, rows * l.out, ncclFloat, ncclSum, group.comm(), stream));
