    for (int row = 0; row < p.rows(); ++row) {
      const int from = (row * group.size() + group.rank()) * p.columns();
      std::copy_n(whole.begin() + from, p.columns(), part.begin() + row * p.columns());
    }
