      elements_[m] = rows(m) * outputs_;
