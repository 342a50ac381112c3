      samples_[m] = batch.samples * micro_batches_;
