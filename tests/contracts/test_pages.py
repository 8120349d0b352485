"""Numbers on the pages that name the stored result they come from are that result's.

A number is tagged behind itself, `0.544<!-- FILE.json:path.to.value -->`; the comment is not
shown. A per cent sign between them stands for a share. FILE lies in benchmarks/results.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TAG = re.compile(r"([−+-]?[\d,]*\.?\d+)\s?(%?)<!-- (\S+?\.json):(.+?) -->")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stored(file: str, path: str) -> float:
    found = json.loads((RESULTS / file).read_text())
    parts = path.split(".")
    while parts:
        if isinstance(found, list):
            found = found[int(parts.pop(0))]
            continue
        for size in range(len(parts), 0, -1):  # keys may hold dots themselves: the longest wins
            if (key := ".".join(parts[:size])) in found:
                found, parts = found[key], parts[size:]
                break
        else:
            raise AssertionError(f"{file} has no {path}")
    return float(found)


def tagged(text: str) -> list[tuple[str, str, str, str]]:
    return TAG.findall(text)


def wrong(tag: tuple[str, str, str, str]) -> str | None:
    shown, percent, file, path = tag
    value = stored(file, path) * (100 if percent else 1)
    decimals = len(shown.partition(".")[2])
    number = float(shown.replace(",", "").replace("−", "-"))
    return None if abs(number - value) <= 0.5000001 * 10**-decimals else f"{shown}: {value}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tagged_numbers_are_the_stored_ones(page: Path):
    text = page.read_text()
    tags = tagged(text)
    assert len(tags) == text.count(".json:"), "a tag stands behind no number"
    assert [problem for tag in tags if (problem := wrong(tag))] == []


def test_a_wrong_number_is_found():
    path = "cgn_baselines.json:trivial_maps.coloured.centre.iou"
    right, rounded_wrong = f"0.544<!-- {path} -->", f"0.545<!-- {path} -->"
    assert wrong(tagged(right)[0]) is None and wrong(tagged(rounded_wrong)[0])
    assert wrong(tagged(f"54.4 %<!-- {path} -->")[0]) is None
