"""Answers that are kept here for a while, as OpenAI keeps them: references, background, conversations."""
