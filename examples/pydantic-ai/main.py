"""Run an agent of Pydantic AI by a gateway."""

import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url = os.environ.get("VELOX_URL", "http://127.0.0.1:8080")
provider = OpenAIProvider(base_url=f"{url}/v1", api_key=os.environ.get("VELOX_KEY", "unused"))
agent = Agent(OpenAIChatModel(os.environ.get("MODEL", "gpt-4o-mini"), provider=provider), instructions="Be brief.")
print(agent.run_sync("Say hello.").output)
