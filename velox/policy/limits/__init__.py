"""Limits as configured, buckets of permits, and what a request may cost."""
