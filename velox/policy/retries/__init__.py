"""Second tries: when, after how long, how many; and what a client says of its time."""
