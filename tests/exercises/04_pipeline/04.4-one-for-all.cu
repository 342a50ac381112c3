    buffer[i.micro_batch] = 0;
    taken.assign(1, i.kind == takes);
