"""One upstream as a worker has it: its connections, health and keys, its upkeep, its list of models."""
