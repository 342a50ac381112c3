  seconds = t.busy / (1 - bubble) + messages + t.gather + t.reduce;
