      launch(add_bias, R * b.row.out, stream, share, b.row.bias, R, b.row.out);
      NCCL_CHECK(ncclReduceScatter(share, y, count, ncclFloat, ncclSum, group_.comm(), stream));
