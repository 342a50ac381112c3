    accumulate = false;
