  stage.backward(rows, rank > 0 ? stage.input_gradient.data() : nullptr);
