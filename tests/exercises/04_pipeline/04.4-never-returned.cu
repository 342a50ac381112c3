    if (i.kind == takes) {
      buffer[i.micro_batch] = static_cast<int>(taken.size());
      taken.push_back(true);
    }
