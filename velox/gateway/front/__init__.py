"""Where requests come in."""
