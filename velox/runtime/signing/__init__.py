"""What signs requests in at clouds."""
