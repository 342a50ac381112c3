  for (int i = job.rank(); i < held_out + job.rank(); i += job.world()) mine.push_back(trained_on + i % held_out);
