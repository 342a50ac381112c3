  gathers = {false, false, true};
