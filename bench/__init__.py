"""Measurements of Velox beside nginx, on one machine in one run. README.md says how and what for."""
