"""Instructor: structured answers by tools and by schemas, and a second try where the first does not fit."""

from __future__ import annotations

from typing import Any

import instructor
from anthropic import Anthropic
from google import genai
from google.genai.types import HttpOptions
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel, Field
from serving import ASKED, Gateway, serve


class Report(BaseModel):
    """How the weather is."""

    city: str
    degrees: int = Field(description="Celsius, at most 60.", le=60)


def openai(mode: Mode) -> Any:
    """Return a function that makes a client of OpenAI's API."""
    return lambda gateway: instructor.from_openai(
        OpenAI(base_url=gateway.openai, api_key=gateway.key, max_retries=0), mode=mode
    )


def anthropic(mode: Mode) -> Any:
    """Return a function that makes a client of Anthropic's API."""
    return lambda gateway: instructor.from_anthropic(
        Anthropic(base_url=gateway.base_url, api_key=gateway.key, max_retries=0), mode=mode
    )


def google(mode: Mode) -> Any:
    """Return a function that makes a client of Google's API."""
    return lambda gateway: instructor.from_genai(
        genai.Client(api_key=gateway.key, http_options=HttpOptions(base_url=gateway.base_url)), mode=mode
    )


def ask(make: Any) -> Any:
    """Return a function that asks for a report, and again where it does not fit."""

    def run(gateway: Gateway) -> Any:
        messages: Any = [{"role": "user", "content": ASKED}]
        more = {"max_tokens": 4000} if "Anthropic" in type(make(gateway).client).__name__ else {}
        asked = {"model": gateway.model, "messages": messages, "response_model": Report, "max_retries": 2, **more}
        if not gateway.is_streamed:
            return make(gateway).chat.completions.create(**asked).model_dump()
        asked.pop("response_model")
        parts = list(make(gateway).chat.completions.create_partial(response_model=Report, **asked))
        return parts[-1].model_dump()

    return run


serve(
    {
        "openai-tools": ask(openai(Mode.TOOLS)),
        "openai-schema": ask(openai(Mode.JSON_SCHEMA)),
        "openai-responses": ask(openai(Mode.RESPONSES_TOOLS)),
        "anthropic-tools": ask(anthropic(Mode.ANTHROPIC_TOOLS)),
        "google-tools": ask(google(Mode.GENAI_TOOLS)),
        "google-schema": ask(google(Mode.GENAI_STRUCTURED_OUTPUTS)),
    }
)
