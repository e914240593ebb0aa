"""Budgets as configured: windows of time, rules, alerts."""
