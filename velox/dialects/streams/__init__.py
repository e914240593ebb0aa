"""Streams of any dialect: server-sent events read, blocks in order, whole answers as events and back."""
