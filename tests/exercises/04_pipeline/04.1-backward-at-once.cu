    for (int m = 0; m < micro_batches; ++m) {
      order.push_back({Instruction::forward, m});
      order.push_back({Instruction::backward, m});
    }
