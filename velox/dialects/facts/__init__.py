"""What is known of a model, and what values of a request become by it."""
