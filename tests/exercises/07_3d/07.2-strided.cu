    color = at.pipeline * shape.tensor + at.tensor;
    key = at.data;
