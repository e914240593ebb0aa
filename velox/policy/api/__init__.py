"""The table of the API: its endpoints, what is made there, and the ids of it."""
