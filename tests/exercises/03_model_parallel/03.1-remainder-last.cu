    end += layers / parts + (p >= parts - layers % parts ? 1 : 0);
