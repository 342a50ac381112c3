    color = at.tensor;
    key = at.data;
