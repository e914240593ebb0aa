"""What a file says of upstreams and routes."""
