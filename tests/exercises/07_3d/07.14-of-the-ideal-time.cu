  share = (layout.pp - 1.0) / layout.micro_batches;
