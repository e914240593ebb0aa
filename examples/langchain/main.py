"""Ask a gateway by LangChain, with its models of OpenAI's and of Anthropic's API."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

url = os.environ.get("VELOX_URL", "http://127.0.0.1:8080")
key = os.environ.get("VELOX_KEY", "unused")
model = os.environ.get("MODEL", "gpt-4o-mini")

for chat in (
    ChatOpenAI(base_url=f"{url}/v1", api_key=key, model=model),
    ChatAnthropic(base_url=url, api_key=key, model=model, max_tokens=100),
):
    for chunk in chat.stream("Say hello."):
        print(chunk.text, end="", flush=True)
    print()
