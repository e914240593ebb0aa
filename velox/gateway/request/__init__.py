"""The life of one request from the queue to the account, and the copies of it."""
