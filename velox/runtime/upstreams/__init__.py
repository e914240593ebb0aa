"""The upstreams of a worker, made from the settings."""
