"""A gateway as a daemon, and what its operator asks: `velox start`, `stop`, `restart`, `status` and `logs`."""
