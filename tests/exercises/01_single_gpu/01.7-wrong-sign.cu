      launch(sgd, count_, stream_, value, grad, -static_cast<float>(lr_), static_cast<float>(weight_decay_), count_);
