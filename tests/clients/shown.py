"""The setup of a client as docs/clients.md shows it, with a gateway, a key and a model of the tests in it.

Knows: the page's sections and fenced blocks. Does not know: what is in them.
"""

from __future__ import annotations

import re
from typing import Final

from tests.clients.farm import KEY, Farm
from tests.markdown import ROOT

__all__ = ["PAGE", "block", "section", "variables"]

PAGE: Final = ROOT / "docs/clients.md"


def section(name: str, language: str) -> str:
    """Return the only block of a language in a section."""
    body = re.search(rf"^## {re.escape(name)}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert body is not None, name
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", body[1], re.MULTILINE | re.DOTALL)
    return str(found)


def block(name: str, language: str, farm: Farm, model: str) -> str:
    """Return that block, filled in."""
    found = section(name, language)
    for shown, given in (
        ("http://127.0.0.1:8080", farm.velox.base_url),
        ("a key of the gateway", KEY),
        ("any model of the gateway", model),
        ("MODEL", model),
    ):
        found = re.sub(rf"(?<![A-Z_]){re.escape(shown)}(?![A-Z_])", given, found)
    return found


def variables(name: str, farm: Farm, model: str) -> dict[str, str]:
    """Return the environment variables of a section, filled in."""
    lines = block(name, "ini", farm, model).splitlines()
    return dict(line.split("=", 1) for line in lines)
