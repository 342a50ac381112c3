  for (int unit = 0; unit < units; ++unit) passes.push_back({unit, false, true});
  for (int unit = units - 1; unit >= 0; --unit) passes.push_back({unit, true, false});
