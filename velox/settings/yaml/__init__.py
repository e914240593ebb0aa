"""The file of settings as trees, with the numbers of lines."""
