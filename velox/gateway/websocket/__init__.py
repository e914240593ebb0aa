"""Requests that become WebSockets."""
