"""JSON as bytes: texts that stay as they stood, decoding, and halves of surrogate pairs."""
