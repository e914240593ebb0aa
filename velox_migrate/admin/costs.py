"""LiteLLM's `/spend/calculate`: the cost of an answer by its usage, or of messages before they are sent.

    {"completion_response": {"model": ..., "usage": {...}}}    exactly, as the records have it
    {"model": ..., "messages": [...]}                          of the prompt alone, by VELOX_BYTES_PER_TOKEN

Knows: how these are asked for, and at which upstream a model is. Does not know: prices
(velox.runtime.priced).
Source: https://docs.litellm.ai/docs/proxy/cost_tracking, litellm/proxy/spend_tracking/spend_management_endpoints.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import READERS, Route
from velox_migrate.admin.reports import Model

__all__ = ["FindCost", "LitellmCosts"]

# What an answer costs at the first of some upstreams that has a price, each with the model asked for: nano-dollars.
FindCost = Callable[[Iterable[tuple[str, str]], Mapping[str, object]], int | None]
_PATH: Final = "/spend/calculate"
_FIELDS: Final = frozenset({"model", "messages", "completion_response"})
_NANO: Final = 10**9


class LitellmCosts:
    """The call. costs: makes what prices an answer. models: those that routes name.

    upstreams: where others may be asked for. bytes_per_token: of texts.
    """

    def __init__(
        self,
        costs: Callable[[], FindCost],
        models: Sequence[Model],
        upstreams: Sequence[str],
        bytes_per_token: int,
    ) -> None:
        self._costs: Final = costs
        self._cost_of: FindCost | None = None  # the table is read with the first call
        self._models: Final = models
        self._upstreams: Final = upstreams
        self._bytes_per_token: Final = bytes_per_token

    def __repr__(self) -> str:
        return "<LitellmCosts>"

    def routes(self) -> Iterator[Route]:
        """Return it."""
        yield Route("POST", _PATH, _PATH, "", self._calculate, {}, READERS, body={})

    def _calculate(self, call: ApiCall) -> Answer:
        body = call.body
        unknown = next((name for name in body if name not in _FIELDS), None)
        if unknown is not None:
            raise ApiError(400, "invalid", "LiteLLM has no such field here", unknown[:64])
        model, messages, answer = (body.get(name) for name in ("model", "messages", "completion_response"))
        if model is not None and not isinstance(model, str):
            raise ApiError(400, "invalid", "model: expected a name", "model")
        if model is not None and messages is not None:
            answer = {"usage": {"prompt_tokens": self._estimated(messages), "completion_tokens": 0}}
        elif not isinstance(answer, Mapping):
            message = "expected model and messages, or a completion_response"
            raise ApiError(400, "invalid", message, "completion_response")
        name = model or answer.get("model")
        if not isinstance(name, str) or not name:
            raise ApiError(400, "invalid", "completion_response: expected its model", "completion_response")
        if self._cost_of is None:
            self._cost_of = self._costs()
        nano = self._cost_of(self._places(name), answer)
        if nano is None:
            message = "model: no price is known for it, or the answer has no usage; give a price by VELOX_PRICES"
            raise ApiError(400, "invalid", message, "model")
        return Answer(200, {"cost": nano / _NANO})

    def _places(self, model: str) -> Iterator[tuple[str, str]]:
        """Yield the upstreams that a model may be asked at, each with its name there."""
        found = [(each.upstream, each.target or each.name) for each in self._models if each.name == model]
        yield from found
        if not found:
            names = dict.fromkeys((model, model.rpartition("/")[2]))  # "openai/gpt-4o", as LiteLLM's are
            yield from ((upstream, name) for name in names for upstream in self._upstreams)

    def _estimated(self, messages: object) -> int:
        if not isinstance(messages, list) or not messages:
            raise ApiError(400, "invalid", "messages: expected a list of messages", "messages")
        n_bytes = sum(len(text.encode("utf-8", "replace")) for text in _texts(messages))
        return -(-n_bytes // self._bytes_per_token)


def _texts(messages: Sequence[object]) -> Iterator[str]:
    """Yield the texts of messages. Raises ApiError for what has no length that would tell its tokens."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts: list[object] = [content] if not isinstance(content, list) else content
        for part in parts:
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
            if not isinstance(text, str):
                why = "messages: only texts can be counted before the call; calculate its completion_response"
                raise ApiError(400, "invalid", why, "messages")
            yield text
