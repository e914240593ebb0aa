"""Checks of settings against each other, and of the files that they name."""
