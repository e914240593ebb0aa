"""What differs between providers is data in velox/providers: no code of the gateway asks for a provider by its name."""

from __future__ import annotations

import ast
from pathlib import Path

from velox.providers.rows import PROVIDERS

ROOT = Path(__file__).parents[2] / "velox"


def test_gateway_names_no_provider() -> None:
    """A branch by a provider's name is a field that its row lacks (Provider, ProviderTraits, ModelFacts)."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for folder in ("gateway", "dialects/as_sent", "dialects/facts", "net")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PROVIDERS
    ]

    assert found == []
