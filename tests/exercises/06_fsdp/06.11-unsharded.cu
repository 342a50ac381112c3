    layout.offsets.push_back(layout.count);
    layout.count += unit.sharding.padded();
