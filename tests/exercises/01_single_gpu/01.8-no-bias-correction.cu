  s = {static_cast<float>(1 - lr * weight_decay), 0.9f, 0.999f, static_cast<float>(lr), 1.0f, 1e-8f};
