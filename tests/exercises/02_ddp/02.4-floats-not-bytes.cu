    count += (l.in + 1) * l.out;
    if (count >= bucket_bytes || i == 0) {
      buckets.push_back({i, last, static_cast<int>(l.weight_grad - model.grads()), count});
      last = i - 1;
      count = 0;
    }
