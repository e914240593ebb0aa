"""Requests that share one call of an upstream: equal ones at one time, and a client's retry with its first."""
