"""Ask a gateway by Anthropic's SDK: Messages as a stream."""

import os

from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ.get("VELOX_URL", "http://127.0.0.1:8080"), api_key=os.environ.get("VELOX_KEY", "unused")
)
with client.messages.stream(
    model=os.environ.get("MODEL", "gpt-4o-mini"),
    max_tokens=100,
    messages=[{"role": "user", "content": "Say hello."}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print()
    print("output tokens:", stream.get_final_message().usage.output_tokens)
