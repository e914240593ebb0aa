"""Traces: what workers note of requests, and the spans that are made of it in another process."""
