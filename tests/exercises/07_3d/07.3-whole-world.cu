    color = 0;
    key = rank_of(at, shape);
