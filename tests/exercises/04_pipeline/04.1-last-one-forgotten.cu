    for (int m = 0; m < micro_batches; ++m) order.push_back({Instruction::forward, m});
    for (int m = micro_batches - 1; m > 0; --m) order.push_back({Instruction::backward, m});
