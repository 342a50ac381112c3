    static_cast<void>(comm);
