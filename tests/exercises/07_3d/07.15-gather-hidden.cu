  seconds = t.busy / (1 - bubble) + messages + std::max(0.0, t.gather + t.reduce - t.backward);
