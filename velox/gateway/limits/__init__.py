"""What counts a request: limits, quotas, budgets, tokens, calls for the ledger."""
