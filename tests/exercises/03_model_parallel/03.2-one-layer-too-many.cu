    const int last = layers - (parts - 1 - p);
    for (std::int64_t sum = 0; end < last && sum <= limit; ++end) sum += counts[end];
