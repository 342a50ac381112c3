      samples_[m] = micro_batch(m).samples;
