    const int warm_up = std::min(micro_batches, stages - 1 - stage);
    for (int m = 0; m < warm_up; ++m) order.push_back({Instruction::forward, m});
    for (int m = warm_up; m < micro_batches; ++m) {
      order.push_back({Instruction::backward, m - warm_up});
      order.push_back({Instruction::forward, m});
    }
    for (int m = micro_batches - warm_up; m < micro_batches; ++m) order.push_back({Instruction::backward, m});
