"""Run an agent of OpenAI's Agents SDK by a gateway. Traces would go to OpenAI: they are off."""

import os

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)
url = os.environ.get("VELOX_URL", "http://127.0.0.1:8080")
client = AsyncOpenAI(base_url=f"{url}/v1", api_key=os.environ.get("VELOX_KEY", "unused"))
model = OpenAIChatCompletionsModel(model=os.environ.get("MODEL", "gpt-4o-mini"), openai_client=client)
agent = Agent(name="greeter", instructions="Be brief.", model=model)
print(Runner.run_sync(agent, "Say hello.").final_output)
