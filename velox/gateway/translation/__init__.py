"""What is sent, in the form of the upstream's provider, and what brings its reply back into the client's dialect."""
