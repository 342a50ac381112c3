    for (std::int64_t sum = 0; end < layers && sum + counts[end] <= limit; ++end) sum += counts[end];
