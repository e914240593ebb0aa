"""OpenAI Responses: what clients send and get, and what models take and answer."""
