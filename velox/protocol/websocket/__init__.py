"""WebSocket (RFC 6455): the handshake, frames, messages."""
