"""Micro benchmarks: each part of Velox by itself, beside standard ways of doing the same."""
