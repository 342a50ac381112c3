    color = at.pipeline * shape.data + at.data;
    key = shape.tensor - at.tensor;
