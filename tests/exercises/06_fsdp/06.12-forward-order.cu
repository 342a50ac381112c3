  for (int unit = 0; unit < units; ++unit) passes.push_back({unit, false, true});
  for (int unit = 0; unit < units; ++unit) passes.push_back({unit, true, reshard_after_forward});
