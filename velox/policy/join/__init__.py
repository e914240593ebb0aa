"""Requests that share one call of an upstream: which ones may, and who gets what of its reply."""
