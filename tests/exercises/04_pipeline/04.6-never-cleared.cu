    accumulate = true;
