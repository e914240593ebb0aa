"""Processes of a gateway: how they start and end, who watches them, the sockets that they inherit."""
