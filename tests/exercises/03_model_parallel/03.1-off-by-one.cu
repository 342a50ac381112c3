    end += layers / parts + (p <= layers % parts ? 1 : 0);
