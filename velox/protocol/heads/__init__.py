"""Heads of HTTP messages, whichever version: names of fields, targets, and what is kept of heads that came before."""
