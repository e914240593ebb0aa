"""Gemini's generateContent, as AI Studio and Vertex serve it: models that speak it, and clients that do."""
