"""What a file says of callers: keys, limits, budgets, prices."""
