    count += (l.in + 1) * l.out;
    if (count * sizeof(float) >= bucket_bytes || i == 0) {
      buckets.insert(buckets.begin(), {i, last, static_cast<int>(l.weight_grad - model.grads()), count});
      last = i - 1;
      count = 0;
    }
