"""Tools and JSON schemas: as targets take them, and the arguments of calls."""
