"""What the workers do just now: asked of them, shown, ended (profiling/running.py has the values)."""
