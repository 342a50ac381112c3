    static_cast<void>(grads);
