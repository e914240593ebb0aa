"""An OpenAI-compatible upstream that makes its answers up: for demos, tests and load."""
