      const AdamWStep s{static_cast<float>(1 - lr_ * weight_decay_), 0.9f, 0.999f, static_cast<float>(lr_), 1.0f, 1e-8f};
      launch(adamw, count_, stream_, value, grad, mean_.data(), square_.data(), s, count_);
