  for (int i = 0; i < S; ++i) {
    for (int j = 0; j < S; ++j) allowed[i * S + j] = j < i ? 1 : 0;
  }
