    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; ++i) enqueue(in, out, count, group_);
    const std::chrono::duration<float, std::milli> taken = std::chrono::steady_clock::now() - begin;
    milliseconds = taken.count();
