    const int columns = p.columns() / group.size();
    for (int row = 0; row < p.rows() * group.size(); ++row) {
      std::copy_n(whole.begin() + row * p.columns() + group.rank() * columns, columns, part.begin() + row * columns);
    }
