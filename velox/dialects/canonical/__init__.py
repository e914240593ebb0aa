"""The canonical model of requests, answers and streams between dialects, and what belongs to no dialect."""
