"""The commands of `velox` that are neither `serve` nor the admin API."""
