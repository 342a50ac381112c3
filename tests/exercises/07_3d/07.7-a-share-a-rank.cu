  shares = static_cast<int>(mesh.shape.ranks());
  share = rank_of(mesh.at, mesh.shape);
