  data = rank % shape.data;
  tensor = rank / shape.data % shape.tensor;
  pipeline = rank / (shape.tensor * shape.data);
