"""A simulator of OpenAI's, Anthropic's and Gemini's APIs that makes its answers up: for demos, tests and load.

A package of its own beside velox, installed with it. `velox sim` runs it (command.py), and nothing of a gateway imports
it but the command line. Of velox it uses the HTTP codecs (velox.protocol, velox.heads, velox.errors), how addresses and
durations are written (velox.settings.parse), and nothing else.
"""
