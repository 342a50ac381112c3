    std::copy_n(whole.begin() + group.rank() * p.count(), p.count(), part.begin());
