"""Velox: an LLM inference gateway between OpenAI-SDK clients and model providers."""

__version__ = "0.1.0"
