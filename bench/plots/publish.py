"""Puts a run into the pages: tables between their markers, pictures beside them, the run itself in data/.

Knows: which page a kind of run fills, and its markers. Does not know: what stands between them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.plots import tables
from bench.plots.bars import all_bars, json_cell, shown_bars
from bench.plots.document import ROOT, Document, read, small, written
from bench.plots.key_figures import kept, key_figures
from bench.plots.pictures import PICTURES
from docs.tables import fill

__all__ = ["PAGES", "README", "UNMEASURED", "files", "publish", "sections"]

PAGES: Final = ROOT / "docs" / "benchmarks"
README: Final = ROOT / "README.md"
# kind of run -> name of its page, its data and its pictures.
_NAMES: Final = {"bench": "gateways", "full": "full", "smoke": "gateways"}
# The markers of README.md.
_KEY: Final = "key-figures"
# What the clients of a run sent, in README.md.
_HEADS: Final = (
    "Requests and replies have the headers that OpenAI SDKs and a provider send: ids differ in each, 100 callers,\n"
    "10 models."
)
_EQUAL_ONLY: Final = (
    "**All requests of this run had the same headers, which no real client sends. Where headers differ, a request\n"
    "costs Velox about twice as much.** The next run has real headers."
)
UNMEASURED: Final = "Nothing has been measured for this page yet.\n"


def publish(document: Path, into: Path | None = None) -> None:
    """Fill the page of a run, draw its pictures, keep its small form; and fill README.md if it is a `bench` run.

    into: a folder that gets page, pictures and data instead, made of the page as it is. Raises ValueError for a short
    run without such a folder: no page is made of one.
    """
    raw = json.loads(document.read_text())
    if raw.get("kind") == "smoke" and into is None:
        raise ValueError("a short run says nothing that may be published: give a folder for it")
    kept_form = small(raw)
    folder = into or PAGES
    for path, text in files(kept_form, folder, readme=README if into is None else None).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in _absent(kept_form):
        (folder / name).unlink(missing_ok=True)


def files(kept_form: Mapping[str, Any], folder: Path, *, readme: Path | None) -> dict[Path, str]:
    """Return every file that a run fills with its text. readme: the page with the key figures, None: none."""
    document = read(kept_form)
    name = _NAMES[document.kind]
    page = folder / f"{name}.md"
    text = (page if page.exists() else PAGES / f"{name}.md").read_text()
    for marker, table in sections(document).items():
        text = fill(text, marker, table)
    found = {page: text, folder / "data" / f"{name}.json": written(kept_form)}
    for each in PICTURES:
        drawn = each.draw(document)
        if drawn:
            found[folder / _file(name, each.name)] = drawn
    if readme is not None and document.kind == "bench":
        found[readme] = fill(readme.read_text(), _KEY, _of_readme(document))
    return found


def sections(document: Document) -> dict[str, str]:
    """Return marker -> what stands between it and its end, of the page of a run."""
    bars = all_bars(document)
    made = {
        "run": tables.machine(document),
        "bars": f"{kept(bars)}.\n\n{shown_bars(bars)}",
        "pictures": _shown_pictures(document),
        "cells": tables.cells(document, bars),
        "memory": tables.memory(document, bars),
        "workers": tables.cores(document),
        "subjects": tables.subjects(document),
    }
    return {marker: f"{text}\n" for marker, text in made.items()}


def _of_readme(document: Document) -> str:
    folder = PAGES.relative_to(ROOT)
    page = f"{folder}/{_NAMES[document.kind]}.md"
    lines = [
        f"{document.date}, {document.machine.get('cores')} cores of {document.machine.get('cpu')}, CPython "
        f"{document.machine.get('python')}; median of {document.rounds} interleaved rounds.",
        f"{kept(all_bars(document))}: [all of them]({page}#bars), [pictures]({page}#pictures).",
        _HEADS if json_cell(document) else _EQUAL_ONLY,
        "",
        key_figures(document),
    ]
    return "\n".join(lines) + "\n"


def _shown_pictures(document: Document) -> str:
    name = _NAMES[document.kind]
    shown = [f"![{each.alt}]({_file(name, each.name)})" for each in PICTURES if each.draw(document)]
    return "\n\n".join(shown) or "This run has no figures for a picture."


def _absent(kept_form: Mapping[str, Any]) -> list[str]:
    """Return the files of pictures that this run can't draw: one of an older run must not stay."""
    document = read(kept_form)
    return [_file(_NAMES[document.kind], each.name) for each in PICTURES if not each.draw(document)]


def _file(page: str, name: str) -> str:
    return f"{page}-{name}.svg"
