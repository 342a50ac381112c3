    std::copy_n(whole.begin(), p.count(), part.begin());
