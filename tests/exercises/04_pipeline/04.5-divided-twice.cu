      elements_[m] = batch.rows * outputs_ * micro_batches_;
