  for (int unit = 0; unit < units; ++unit) uses.push_back({unit, false, true});
  for (int unit = units - 1; unit >= 0; --unit) uses.push_back({unit, true, false});
