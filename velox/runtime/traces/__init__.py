"""The process that exports traces."""
