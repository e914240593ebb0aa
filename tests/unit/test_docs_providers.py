"""docs/provider-pages.md: each provider has its page, and what it shows can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.markdown import ROOT, anchors, blocks
from velox.providers.rows import COMPATIBLE, PROVIDERS
from velox.settings import load

PAGE = ROOT / "docs/provider-pages.md"
KEYS = {name: "k-0123456789" for row in PROVIDERS.values() for name in row.key_variables}


@pytest.mark.parametrize("file", blocks(PAGE, "yaml"), ids=lambda file: str(file).partition("provider: ")[2][:12])
def test_file_shown_is_taken(file: str, tmp_path: Path) -> None:
    """It makes one upstream of that provider."""
    path = tmp_path / "velox.yaml"
    path.write_text(file)

    (entry,) = load({"VELOX_CONFIG": str(path), **KEYS}, cores=2).upstreams

    assert f"{{provider: {entry.provider}" in file


def test_each_provider_has_a_page() -> None:
    """None is missing: they are made from the rows."""
    titles = [row for row in PROVIDERS.values() if row is not COMPATIBLE]

    assert len(blocks(PAGE, "yaml")) == len(titles) == len(anchors(PAGE)) - 1
