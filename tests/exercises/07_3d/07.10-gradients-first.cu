  if (layout.zero >= 1) memory.gradients /= layout.dp;
  if (layout.zero >= 2) memory.optimizer /= layout.dp;
  if (layout.zero >= 3) memory.parameters /= layout.dp;
