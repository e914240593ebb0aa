"""Limits and budgets over several gateways: the process that speaks with Redis, and the workers' side of it."""
