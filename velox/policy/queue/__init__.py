"""Who waits for room, who is next, and how many may run."""
