"""Kept answers of upstreams: which requests are equal, which answers may be kept, what a client asks of the cache."""
