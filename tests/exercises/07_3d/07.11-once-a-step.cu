  sent = (layout.zero < 3 ? 2 : 3) * whole * (layout.dp - 1) / layout.dp;
