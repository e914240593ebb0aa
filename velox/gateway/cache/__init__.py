"""Answers of upstreams that are given again: the response cache."""
