  for (int i = 0; i < held_out; ++i) mine.push_back(trained_on + i);
