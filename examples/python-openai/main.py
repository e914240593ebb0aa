"""Ask a gateway by OpenAI's SDK: Chat Completions as a stream, then Responses."""

import os

from openai import OpenAI

url = os.environ.get("VELOX_URL", "http://127.0.0.1:8080")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("VELOX_KEY", "unused"))
model = os.environ.get("MODEL", "gpt-4o-mini")

chunks = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Say hello."}], stream=True)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()

response = client.responses.create(model=model, input="Say hello.")
print(response.output_text)
