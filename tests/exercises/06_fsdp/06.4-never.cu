  gathers = {false, false, false};
