"""Upgrades by the admin listener: the page, and the command that asks it."""
