  seconds = t.busy * (1 + bubble) + messages + t.gather + std::max(0.0, t.reduce - t.backward);
