  // The other ranks have their features, and this one has its own.
