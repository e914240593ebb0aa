"""Routes and upstreams as configured, and which route a request takes."""
