"""What a process has: descriptors, memory, garbage."""
