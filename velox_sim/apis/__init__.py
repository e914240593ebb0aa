"""The APIs that the simulator answers: what a request wishes of it, and the replies."""
