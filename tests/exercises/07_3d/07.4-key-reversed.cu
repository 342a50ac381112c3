    color = at.data * shape.tensor + at.tensor;
    key = -at.pipeline;
