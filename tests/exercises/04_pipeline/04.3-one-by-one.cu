    chunk = n % chunks;
    micro_batch = n / chunks;
