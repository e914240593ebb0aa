"""Pictures, files and documents in requests."""
