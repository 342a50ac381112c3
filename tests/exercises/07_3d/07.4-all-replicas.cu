    color = at.tensor;
    key = at.pipeline;
