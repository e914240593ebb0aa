"""Embeddings across APIs."""
