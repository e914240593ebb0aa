"""OpenAI's Chat Completions, as clients and as models speak it, and every server that is compatible with it."""
