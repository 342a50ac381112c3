    chunk = n / micro_batches;
    micro_batch = n % micro_batches;
