"""One upstream as a worker has it: its connections, health and keys, its health checks, its list of models."""
