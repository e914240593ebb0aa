"""Streams of any dialect: order of blocks, whole answers as events and back."""
