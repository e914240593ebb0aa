"""Write velox/prices/table.jsonl anew: the price table that is shipped, from the data of the package genai-prices.

    pip download --no-deps genai-prices litellm
    python -m deploy.prices genai_prices-*.whl litellm-*.whl [--date 2026-11-23]

The packages are read, never imported: genai-prices' data is a Python file of constructor calls, and each call becomes a
dict. LiteLLM's is JSON; of that only what genai-prices has no prices of is taken (_litellm_models()).
Prices stand there in dollars per million tokens, as decimals in quotes; here they are whole pico-dollars, and one that
is not whole is rounded. What the table rounds or leaves out is written into its first line.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

__all__ = ["main", "table_lines"]

TABLE: Final = Path(__file__).parent.parent / "velox" / "prices" / "table.jsonl"
# Pico-dollars of one unit for one dollar of the price.
_PER: Final = {"mtok": 10**6, "kcount": 10**9, "mchars": 10**6, "kpages": 10**9, "hours": 10**12}
_FLOAT_NOISE: Final = Decimal("0.000001")
_NOT_COUNTED: Final = "no reply that Velox reads counts this unit"
_UNITS: Final = (
    *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "input_audio_mtok"),
    *("cache_audio_read_mtok", "output_audio_mtok", "input_image_mtok", "cache_image_read_mtok", "output_image_mtok"),
    *("output_reasoning_mtok", "web_searches_kcount", "requests_kcount"),
)
# What a model is paid by that is paid by no tokens.
_LENGTHS: Final = (
    *("input_audio_hours", "input_mchars", "input_document_kpages", "input_annotated_document_kpages"),
    "rerank_searches_kcount",
)
# Whose rankings are taken from LiteLLM, by the provider of Velox's: their replies tell search units.
_RERANKS: Final = {"cohere": "cohere", "azure_ai": "azure"}
# Sizes of videos, by their price there. https://platform.openai.com/docs/pricing
_VIDEO_SIZES: Final = {
    "sora-2": {"720x1280": "openai/sora-2", "1280x720": "openai/sora-2"},
    "sora-2-pro": {
        **dict.fromkeys(("720x1280", "1280x720"), "openai/sora-2-pro"),
        **dict.fromkeys(("1024x1792", "1792x1024"), "openai/sora-2-pro-high-res"),
    },
}
_SAME: Final = "audio_hours"  # as input_audio_hours
_TIERS: Final = {
    ("processing", "batch"): "batch",
    ("service_tier", "priority"): "priority",
    ("service_tier", "flex"): "flex",
    ("service_tier", "fast"): "fast",
    ("speed", "fast"): "fast",
    ("service_tier", "default"): "default",
}


def main(argv: list[str] | None = None) -> int:
    """Write the table. Exit code 1: the data has something that this script can't carry over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("litellm", type=Path)
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat(), help="when the data was fetched")
    arguments = parser.parse_args(argv)
    lines = table_lines(arguments.wheel, arguments.litellm, arguments.date)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    head = json.loads(lines[0])
    sys.stdout.write(f"{TABLE.name}: {head['models']} models, {len(head['left_out'])} prices left out\n")
    return 0


def table_lines(wheel: Path, litellm: Path, date: str) -> list[str]:
    """Return the lines of the table: its head, and one for each provider."""
    source, notice = _read(wheel, "genai_prices/data.py")
    more, more_notice = _read(litellm, "litellm/model_prices_and_context_window_backup.json")
    providers = _providers(source)
    left_out: list[list[str]] = []
    rounded: list[list[str]] = []
    rows = [_provider(provider, left_out, rounded) for provider in providers]
    for home, models in _litellm_models(json.loads(more, parse_float=Decimal)).items():
        own = next(row["models"] for row in rows if row["id"] == home)
        own += [model for model in models if all(model[0] != each[0] for each in own)]
    head = {
        "source": "genai-prices",
        "version": f"{wheel.name.split('-')[1]} with litellm {litellm.name.split('-')[1]}",
        "date": date,
        "unit": "pico-dollars of one token, call, search, character, hour, page, picture or second",
        "models": sum(len(row["models"]) for row in rows),
        "left_out": left_out,
        "rounded": rounded,
        "licence": f"{notice}\n\nlitellm's prices:\n\n{more_notice}",
    }
    return [json.dumps(each, separators=(",", ":")) for each in (head, *rows)]


def _read(wheel: Path, name: str) -> tuple[str, str]:
    """Return a file of a package, and the licence that it is under."""
    with zipfile.ZipFile(wheel) as archive:
        licence = next(each for each in archive.namelist() if each.endswith("licenses/LICENSE"))
        return archive.read(name).decode(), archive.read(licence).decode()


def _litellm_models(prices: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """Return models as _model() does, by provider: those whose units genai-prices has no prices of."""
    found: dict[str, list[Any]] = {"azure": [], "openai": [], "cohere": [], "mistral": []}
    for name, fields in prices.items():
        vendor, model = fields.get("litellm_provider"), name.rpartition("/")[2]
        if vendor in _RERANKS and fields.get("mode") == "rerank":
            found[_RERANKS[vendor]].append([model, ["equals", model.lower()], [[None, _of_ranking(fields)]], [], 0])
        elif vendor == "mistral" and fields.get("mode") == "moderation" and not fields["input_cost_per_token"]:
            found[vendor].append([model, ["equals", model], [[None, {"input_mtok": 0, "output_mtok": 0}]], [], 0])
    for home in ("openai", "azure"):
        found[home] += [_videos(model, prices) for model in _VIDEO_SIZES]
    found["azure"].append(_pictures("azure", "dall-e-3", prices))
    return found


def _of_ranking(fields: dict[str, Any]) -> dict[str, int]:
    if "input_cost_per_query" in fields:
        return {"rerank_searches_kcount": round(Decimal(fields["input_cost_per_query"]) * 10**12)}
    return {"input_mtok": round(Decimal(fields["input_cost_per_token"]) * 10**12), "output_mtok": 0}


def _videos(model: str, prices: dict[str, dict[str, Any]]) -> list[Any]:
    """Return a model that makes videos, by their size; the first one is that of who names none."""
    rates = {
        size: {"output_video_seconds": round(Decimal(prices[name]["output_cost_per_video_per_second"]) * 10**12)}
        for size, name in _VIDEO_SIZES[model].items()
    }
    usual = next(iter(rates.values()))
    variants = [[f"video {size}", None, rate] for size, rate in {"default": usual, **rates}.items()]
    return [model, ["or", ["equals", model], ["startswith", f"{model}-20"]], [[None, usual]], variants, 0]


def _pictures(home: str, model: str, prices: dict[str, dict[str, Any]]) -> list[Any]:
    """Return a model that makes pictures, by quality and size. Of a price by pixels one of the picture is made."""
    rates: dict[str, dict[str, int]] = {}
    for name, fields in prices.items():
        if match := re.fullmatch(rf"{home}/([a-z]+)/(\d+)-x-(\d+)/{re.escape(model)}", name):
            quality, width, height = match.groups()
            dollars = Decimal(fields["input_cost_per_pixel"]) * int(width) * int(height)
            # It was divided there: vendors' prices are of 0.1 cents.
            rates[f"{quality} {width}x{height}"] = {"output_pictures": int(round(dollars, 3) * 10**12)}
    # What a request leaves out. https://platform.openai.com/docs/api-reference/images/create
    usual = {tier.replace("standard ", "default "): rate for tier, rate in rates.items() if "standard" in tier}
    usual |= {tier.replace(" 1024x1024", " default"): rate for tier, rate in rates.items() if " 1024x1024" in tier}
    variants = [[tier, None, rate] for tier, rate in {**rates, **usual}.items()]
    return [model, ["equals", model], [[None, rates["standard 1024x1024"]]], variants, 0]


def _providers(source: str) -> list[dict[str, Any]]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "providers":
            value = _value(node.value)
            assert isinstance(value, list)
            return value
    raise SystemExit("genai_prices/data.py has no list `providers`")


def _value(node: ast.expr | None) -> Any:
    """Return a literal, and a call as a dict of its arguments with its name under `_`."""
    if isinstance(node, ast.List):
        return [_value(each) for each in node.elts]
    if not isinstance(node, ast.Call):
        return None if node is None or isinstance(node, ast.Attribute) else ast.literal_eval(node)
    name = ast.unparse(node.func)
    if name in ("Decimal", "datetime.date", "datetime.time"):
        return [name, *(ast.literal_eval(each) for each in node.args)]
    return {"_": name, **{each.arg: _value(each.value) for each in node.keywords if each.arg is not None}}


def _provider(provider: dict[str, Any], left_out: list[list[str]], rounded: list[list[str]]) -> dict[str, Any]:
    _vetted(provider["api_pattern"])
    return {
        "id": provider["id"],
        "url": provider["api_pattern"],
        "fallbacks": provider.get("fallback_model_providers") or [],
        "models": [_model(provider["id"], model, left_out, rounded) for model in provider["models"]],
    }


def _model(provider: str, model: dict[str, Any], left_out: list[list[str]], rounded: list[list[str]]) -> list[Any]:
    """Return id, match, prices by date or time, those of other tiers, and the tokens that its context may have."""
    given = model.get("prices") or []
    where = f"{provider}/{model['id']}"
    if isinstance(given, dict):
        given = [{"prices": given}]
    prices = [[_when(each.get("constraint")), _rates(where, each["prices"], left_out, rounded)] for each in given]
    variants = []
    for each in model.get("price_variants") or []:
        tier = _TIERS.get(next(iter(each["when"].items()))) if len(each["when"]) == 1 else None
        if tier is None:
            left_out.append([where, f"variant {each['when']}", "no reply says that it applies"])
            continue
        variants.append(
            [tier, _when(each.get("constraint")), _rates(f"{where} {tier}", each["prices"], left_out, rounded)]
        )
    return [model["id"], _match(model["match"]), prices, variants, model.get("context_window") or 0]


def _rates(where: str, prices: dict[str, Any], left_out: list[list[str]], rounded: list[list[str]]) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    given = {unit for unit, value in prices.items() if unit != "_" and value is not None}
    by_length = given <= {*_LENGTHS, _SAME} and bool(given & set(_LENGTHS))
    for unit, value in prices.items():
        if unit == "_" or value is None or (by_length and unit == _SAME):
            continue
        if unit not in _UNITS and not (by_length and unit in _LENGTHS):
            left_out.append([where, unit, _NOT_COUNTED])
            rates["others"] = 1
            continue
        per = _PER[unit.rpartition("_")[2]]
        if isinstance(value, dict):
            tiers = [[tier["start"], _pico(where, unit, tier["price"], per, rounded)] for tier in value["tiers"]]
            rates[unit] = [_pico(where, unit, value["base"], per, rounded), *sorted(tiers)]
        else:
            rates[unit] = _pico(where, unit, value, per, rounded)
    return rates


def _pico(where: str, unit: str, value: list[str], per: int, rounded: list[list[str]]) -> int:
    pico = Decimal(value[1]) * per
    nearest = round(pico)
    if abs(pico - nearest) < _FLOAT_NOISE:  # 0.18000000000000002: the source had it from a float
        return nearest
    if pico < 0:
        raise SystemExit(f"{where}: {unit} {value[1]} is negative")
    rounded.append([where, unit, value[1]])
    return nearest


def _when(constraint: dict[str, Any] | None) -> list[Any] | None:
    """Return ["from", day] or ["daily", start, end], in seconds of the day in UTC; None: always."""
    if constraint is None:
        return None
    if constraint["_"] == "StartDateConstraint":
        return ["from", "-".join(f"{part:02d}" for part in constraint["start_date"][1:])]
    seconds = [_second(constraint[name]) for name in ("start_time", "end_time")]
    return ["daily", *seconds]


def _second(time: list[Any]) -> int:
    hour, minute, second = (*time[1:], 0, 0)[:3]
    return int(hour) * 3600 + int(minute) * 60 + int(second)


def _match(clause: dict[str, Any]) -> list[Any]:
    kind = clause["_"].removeprefix("Clause").lower()
    value = clause.get("or_") or clause.get("and_")
    if value is not None:
        return [kind, *(_match(each) for each in value)]
    text = next(value for name, value in clause.items() if name != "_")
    return [kind, _vetted(text) if kind == "regex" else text.lower()]


def _vetted(pattern: str) -> str:
    """Return a regular expression that takes linear time; end the script for one that may not.

    Nothing that repeats without a bound may stand in what repeats, and at most one such part may stand in a pattern.
    """
    bare = re.sub(r"\[[^]]*\]", "x", re.sub(r"\\.", "x", pattern))
    if len(re.findall(r"[*+]|\{\d+,\}", bare)) > 1 or re.search(r"\)[*+{]", bare):
        raise SystemExit(f"the pattern {pattern!r} might take long")
    re.compile(pattern)
    return pattern


if __name__ == "__main__":
    sys.exit(main())
