"""Pages and pictures are what their kept run gives, byte by byte; and any run gives pages that say all of it."""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from bench.plots.document import ROOT, read, small, written
from bench.plots.pictures import PICTURES
from bench.plots.publish import PAGES, README, UNMEASURED, files, publish, sections
from bench.plots.svg import wide
from bench.tests.documents import FAST, MISSING, SUBJECTS, run, smoke
from docs.tables import fill

SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 300_000
MOST_PICTURE_BYTES = 40_000


def published(folder: Path, document: dict[str, Any]) -> Path:
    """Publish a run into a folder; return the folder of the pages."""
    (folder / "run.json").write_text(json.dumps(document))
    publish(folder / "run.json", folder / "pages")
    return folder / "pages"


def drawn(document: dict[str, Any], name: str) -> str:
    """Return a picture of a run."""
    (picture,) = [each for each in PICTURES if each.name == name]
    return picture.draw(read(small(document)))


def words(picture: str) -> list[str]:
    """Return the texts of a picture."""
    return [each.text or "" for each in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["gateways", "full"])
def test_page_is_what_its_kept_run_gives(name: str) -> None:
    """Publishing it again would change nothing: tables, pictures, README, and the kept run itself."""
    data = PAGES / "data" / f"{name}.json"
    if not data.exists():
        # Then nothing stands there that could be taken for measured.
        page = (PAGES / f"{name}.md").read_text()
        assert [marker for marker in sections(read(run())) if fill(page, marker, UNMEASURED) != page] == []
        if name == "gateways":
            assert fill(README.read_text(), "key-figures", UNMEASURED) == README.read_text()
        assert list(PAGES.glob(f"{name}-*.svg")) == []
        return
    raw = json.loads(data.read_text())

    made = files(raw, PAGES, readme=README)

    assert written(small(raw)) == data.read_text()
    assert {path.name for path in made if path.read_text() != made[path]} == set()
    assert {path.name for path in PAGES.glob(f"{name}-*.svg")} == {p.name for p in made if p.suffix == ".svg"}
    assert len(data.read_bytes()) < MOST_BYTES


def test_publishing_again_changes_no_byte(tmp_path: Path) -> None:
    """Neither from the whole run nor from its kept form."""
    pages = published(tmp_path, run(missing=("Envoy",)))
    first = {path: path.read_bytes() for path in pages.rglob("*") if path.is_file()}

    published(tmp_path, run(missing=("Envoy",)))
    publish(pages / "data" / "gateways.json", pages)

    assert {path: path.read_bytes() for path in pages.rglob("*") if path.is_file()} == first
    assert len(first) == 2 + len(PICTURES)


def test_run_changed_by_one_figure_changes_the_page(tmp_path: Path) -> None:
    """The page is made of the run, not of the page."""
    document = run()
    before = (published(tmp_path, document) / "gateways.md").read_text()
    for each in document["cells"][0]["rounds"]["Velox"]:
        each["cpu_us"] *= 2

    assert (published(tmp_path, document) / "gateways.md").read_text() != before


def test_kept_form_is_small_even_of_a_full_run() -> None:
    """Fifteen cells of twelve subjects, five rounds each."""
    document = run("full")
    document["cells"] = [{**each, "id": f"{each['id']}-{n}"} for n in range(3) for each in document["cells"]]

    assert len(written(small(document)).encode()) < MOST_BYTES
    assert len(json.dumps(document)) > MOST_BYTES
    # Five digits: more than any of it is sure of.
    assert '"Velox":[[1,21000.0],[2,30500.0]]' in written(small(document))


def test_full_run_fills_its_own_page(tmp_path: Path) -> None:
    """And leaves that of the short one alone."""
    pages = published(tmp_path, run("full"))

    assert {path.name for path in pages.glob("*.md")} == {"full.md"}
    assert UNMEASURED not in (pages / "full.md").read_text()


def test_readme_is_filled_by_the_usual_run_only(tmp_path: Path) -> None:
    """With the same words as a table: each figure with its spread, LLM gateways by name."""
    text = files(small(run()), tmp_path, readme=README)[README]

    assert README not in files(small(run("full")), tmp_path, readme=README)
    shown = text.partition("<!-- key-figures -->")[2].partition("<!-- /key-figures -->")[0]
    assert re.search(
        r"^\| CPU per JSON request, with [^|]* \| .* µs \(.* to .*\) \| .* \(vllm-router\) to .* \(LiteLLM\) \|$",
        shown,
        re.M,
    )
    assert "headers equal" not in shown
    assert shown.count("difference of percentiles") == 2
    assert re.findall(r"\((docs/\S+)\)", shown) == [
        "docs/benchmarks/gateways.md#bars",
        "docs/benchmarks/gateways.md#pictures",
    ]


def test_readme_says_so_where_a_run_had_equal_heads_only(tmp_path: Path) -> None:
    """Such a figure is no client's: it stands there only for want of a better one, and by its name."""
    document = run()
    document["cells"] = [cell for cell in document["cells"] if cell["id"] != "json-750B"]

    text = files(small(document), tmp_path, readme=README)[README]

    assert "| CPU per JSON request, all headers equal (as load generators send, and no real client) |" in text
    assert "**All requests of this run had the same headers" in text


def test_short_run_is_not_published(tmp_path: Path) -> None:
    """It says nothing; into a folder it may go, though it has no memory, no workers, no latencies."""
    (tmp_path / "run.json").write_text(json.dumps(smoke()))
    with pytest.raises(ValueError, match="a short run"):
        publish(tmp_path / "run.json")

    pages = published(tmp_path, smoke())

    assert {path.name for path in pages.glob("*.svg")} == {"gateways-cpu-per-request.svg", "gateways-cpu-per-chunk.svg"}
    assert "This run measured no memory." in (pages / "gateways.md").read_text()


def test_picture_of_an_older_run_does_not_stay(tmp_path: Path) -> None:
    """A run without latencies leaves no picture of them behind."""
    published(tmp_path, run())
    document = run()
    for cell in document["cells"]:
        cell["latencies_ms"] = {}

    pages = published(tmp_path, document)

    assert not list(pages.glob("*latency*"))
    assert "latency.svg" not in (pages / "gateways.md").read_text()


def test_who_is_missing_or_refused_is_named_with_the_reason_below_each_table() -> None:
    """The reason may be the last lines of any installer: it is one line, and no Markdown."""
    made = sections(read(small(run(missing=("Envoy",)))))

    reason = r"- Envoy: PeerError: no wheel \<for> this \| platform: pip said \[no\](such) thing"
    cells = made["cells"].split("### ")[1:]
    assert len(cells) == 6 and all(reason in cell for cell in cells)
    assert all(reason in made[marker] for marker in ("subjects", "memory"))
    assert "- LiteLLM: only 250 of 1000 were answered in 60 s" in made["memory"]
    (fast,) = [cell for cell in cells if cell.startswith("JSON, 750 B, 4,000")]
    assert "- LiteLLM: it serves 120 requests/s at most" in fast


def test_long_reason_is_cut_and_loses_the_place_of_this_repository() -> None:
    """Lines stay short, and another machine's paths are nobody's business."""
    document = run(missing=("Envoy",))
    document["missing"]["Envoy"] = f"{ROOT}/bench/x: failed " + "word " * 200

    made = sections(read(small(document)))["subjects"]

    assert str(ROOT) not in made and "- Envoy: bench/x: failed word" in made and "word ..." in made
    assert max(len(line) for line in made.splitlines() if not line.startswith("|")) <= 150


def test_difference_of_percentiles_is_called_so() -> None:
    """Wherever a time over direct stands, the table's head or the line itself says what it is."""
    made = sections(read(small(run())))
    tables = [each for text in made.values() for each in re.split(r"\n\n", text) if each.startswith("|")]
    over_direct = [each for each in tables if "over direct" in each]

    assert len(over_direct) == 4
    assert all("over direct, ms: difference of percentiles" in each.splitlines()[0] for each in over_direct)
    added = [line for line in made["bars"].splitlines() if "added" in line]
    assert len(added) == 2 and all("difference of percentiles" in line for line in added)


def test_format_that_is_not_known_is_refused() -> None:
    """A later form must not be read as if it were this one."""
    with pytest.raises(ValueError, match="format 2"):
        read({**run(), "format": 2})


@pytest.mark.parametrize("name", [each.name for each in PICTURES])
@pytest.mark.parametrize("missing", [(), ("Envoy", "LiteLLM"), tuple(name for name in SUBJECTS if name not in FAST)])
def test_picture_is_small_self_contained_and_told_in_words(name: str, missing: tuple[str, ...]) -> None:
    """Title and description, text as text, nothing fetched, both kinds of page."""
    document = run(missing=missing)
    # With nobody refused at the higher rate both pictures of latency would show the same.
    picture = drawn(document, name)
    if name == "latency-fast" and not {"LiteLLM", "Portkey"} - set(missing):
        return
    root = ET.fromstring(picture)

    assert len(picture.encode()) < MOST_PICTURE_BYTES
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text and description is not None and description.text
    assert picture.count("http") == 1 and not re.search(r"url\(|@import|@font-face|<image|href", picture)
    assert "prefers-color-scheme: dark" in picture
    assert "Velox" in " ".join(words(picture))


def test_pictures_name_every_subject_that_has_figures() -> None:
    """And nobody else."""
    document = run(missing=("Envoy",))
    with_cpu = set(SUBJECTS) - {"Envoy", "direct"}

    for name in ("cpu-per-request", "cpu-per-chunk"):
        assert set(words(drawn(document, name))) & set(SUBJECTS) == with_cpu
    assert set(words(drawn(document, "latency"))) & set(SUBJECTS) == with_cpu | {"direct"}
    fast = set(words(drawn(document, "latency-fast"))) & set(SUBJECTS)
    assert fast == (with_cpu | {"direct"}) - {"LiteLLM", "Portkey"}


def test_everything_drawn_is_inside_the_picture() -> None:
    """Texts too, as wide as they may be."""
    for each in PICTURES:
        root = ET.fromstring(drawn(run(), each.name))
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for shape in root.iter(f"{SVG}polyline"):
            points = [tuple(map(float, point.split(","))) for point in shape.attrib["points"].split()]
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        for text in root.iter(f"{SVG}text"):
            x, size = float(text.attrib["x"]), wide(text.text or "")
            kind = text.attrib.get("class", "")
            left = x - size if "end" in kind else x - size / 2 if "middle" in kind else x
            small_or_title = "soft" in kind or "title" in kind
            assert left >= -1 and (small_or_title or left + size <= width + 1), text.text


def test_latency_has_no_flag_over_another() -> None:
    """Twelve names, most of them at nearly the same place: each in a row where nothing else is, no pole through one."""
    root = ET.fromstring(drawn(run(), "latency"))
    flags = [
        (float(each.attrib["x"]), float(each.attrib["y"]), wide(each.text or ""))
        for each in root.iter(f"{SVG}text")
        if each.text in SUBJECTS and not each.attrib.get("class", "").startswith("soft")
    ]
    names = len(SUBJECTS)
    flags = sorted(flags, key=lambda flag: flag[1])[:names]

    assert len(flags) == names
    for x, y, width in flags:
        for other_x, other_y, _ in flags:
            is_inside = x < other_x < x + width
            # A flag further right, whose pole would cross this one, flies below it.
            assert not is_inside or other_y > y


def test_figures_of_a_round_that_is_lacking_are_not_compared() -> None:
    """Nobody knows which of the other's rounds the rest belongs to; the median of what there is stands."""
    document = copy.deepcopy(run())
    document["cells"][0]["rounds"]["HAProxy"].pop(1)

    (line,) = [
        line
        for line in sections(read(small(document)))["cells"].split("### ")[1].splitlines()
        if line.startswith("| HAProxy")
    ]
    cells = [cell.strip() for cell in line.split("|")]

    assert cells[2] and cells[3] and not cells[4]


def test_share_of_errors_is_a_share_where_most_rounds_had_none() -> None:
    """Not their number, which among shares would be taken for one."""
    document = run()
    shares = {"HAProxy": (0.0, 0.0, 0.0, 0.0, 0.0003), "Velox": (0.0001, 0.0002, 0.0003, 0.0, 0.0)}
    for name, found in shares.items():
        for figures, share in zip(document["cells"][0]["rounds"][name], found, strict=True):
            figures |= {"errors": round(share * 10_000), "error_share": share}

    lines = sections(read(small(document)))["cells"].split("### ")[1].splitlines()

    at = next(line for line in lines if "errors" in line).split("|").index(" errors ")
    assert [
        line.split("|")[at].strip() for line in lines if line.startswith(("| nginx", "| HAProxy", "| **Velox** "))
    ] == ["", "0.00 %", "0.010 %"]


def test_machine_of_the_run_stands_on_its_page() -> None:
    """And how many rounds there were, and how the interpreter was built."""
    text = " ".join(sections(read(small(run())))["run"].split())

    assert "5 rounds of 2 s a measurement, on 2 cores of Some CPU @ 2.0GHz" in text
    assert "CPython 3.11.2, optimised build, commit abc1234." in text
    assert MISSING["Envoy"] not in text
