    end += layers / parts;
