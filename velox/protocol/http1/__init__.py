"""HTTP/1.1: bytes in, heads and bodies out, and what is written."""
