  gathers = {stage == 3, false, stage == 1 || stage == 2};
