"""Every kind of page from a real run, as pictures at two widths, and what does not fit.

    .venv/bin/python tools/pages.py RUNS --pictures OUT [--only NAME...] [--made]

Each kind of page is a row of `tools/golden.py`; the rows are run into RUNS first (those that ended
well before are left as they are; --made runs none, and takes those that are there). Pictures are
OUT/ROW-WIDTH.png, of the whole page with every expander open but the manifest. Printed is each page
that is wider than its window and each table that is wider than its card, with both widths in
pixels; exit 1 if there is one. Tables of more than ten columns may move sideways inside their card
on a wide screen. --rendered renders the runs anew first.
Needs playwright and Chromium (on the path, or named by CHROMIUM).
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KINDS = (
    *("audit-two", "audit-standard", "audit-ood-attack", "doctor", "compare", "report"),
    *("explain-pixel", "explain-cam", "explain-colour", "explain-frame", "explain-diffusion"),
    *("explain-dvce", "explain-worst", "explain-evaluate", "disagree-persist"),
    *("neurons-pixel", "neurons-diffusion", "neurons-npca", "neurons-spurious"),
    *("neurons-counterfactual", "curate-classes", "curate-adversarial", "curate-ood"),
    *("curate-triage", "curate-labels", "outdata-copies", "repair"),
    *("train-ratio", "train-clip", "train-diffusion", "diffusion-quality", "cgn-train"),
    *("cgn-generate", "cgn-show", "cgn-evaluate", "cgn-compose", "cgn-train-natural"),
    *("reproduce-table", "reproduce-ratio-figure1", "reproduce-digin-figure13"),
    "curate-review-export",
)
"""Rows of the golden runs that together have every kind of page."""
WIDTHS = (1280, 390)
WIDE = """() => {
  document.querySelectorAll('details').forEach((d) => (d.open = true));
  const tables = [];
  for (const region of document.querySelectorAll('.scroll')) {
    const table = region.querySelector('table');
    const moves = table.classList.contains('wide') && innerWidth > 640;
    if (!moves && region.scrollWidth > region.clientWidth)
      tables.push([region.getAttribute('aria-label'), region.scrollWidth, region.clientWidth]);
  }
  return [document.documentElement.scrollWidth, tables];
}"""


def too_wide(page: Any, width: int) -> list[str]:
    """What an open page of the browser shows wider than its place, a line each."""
    whole, tables = page.evaluate(WIDE)
    lines = [f"the page, {whole} in {width}"] if whole > width else []
    return lines + [f"table {name!r}, {needed} in {given}" for name, needed, given in tables]


def chromium() -> str | None:
    """The browser's path."""
    names = ("chromium", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def pages(runs: Path, only: Sequence[str] = ()) -> Iterator[tuple[str, Path]]:
    """Name and file of every page of the runs."""
    for name in only or KINDS:
        for file in sorted((runs / name).rglob("*.html")):
            own = file.relative_to(runs).with_suffix("").parts[1:]
            rest = [part for part in own if part not in ("run", "report")]
            yield "-".join([name, *rest]), file


def look(runs: Path, out: Path | None, only: Sequence[str] = ()) -> list[str]:
    """Take the pictures; a line for everything that does not fit."""
    from playwright.sync_api import sync_playwright

    lines = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, file in pages(runs, only):
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.goto(file.resolve().as_uri())
                lines += [f"{name} at {width}: {line}" for line in too_wide(page, width)]
                page.evaluate(
                    "document.querySelector('#manifest details')?.removeAttribute('open')"
                )
                if out is not None:
                    page.screenshot(
                        path=str(out / f"{name}-{width}.png"), full_page=True, timeout=0
                    )
                page.close()
        browser.close()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="folder of golden runs")
    parser.add_argument("--pictures", type=Path, metavar="OUT", help="folder for the pictures")
    parser.add_argument("--only", nargs="+", default=[], choices=KINDS, metavar="ROW")
    parser.add_argument("--made", action="store_true", help="run nothing: take what is there")
    parser.add_argument("--rendered", action="store_true", help="render what is there anew")
    given = parser.parse_args()
    if chromium() is None:
        parser.error("Chromium absent: install it or set CHROMIUM to its path")
    runs = given.runs.resolve()
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
        given.pictures = given.pictures.resolve()
    if given.rendered:
        from counterlens.report import render
        from counterlens.runs import Run

        for name in given.only or KINDS:
            for file in sorted((runs / name).rglob("report.html")):
                render(Run.open(file.parent))
    elif not given.made:
        import golden

        if golden.run(runs, given.only or KINDS, again=False):
            return 2
    lines = look(runs, given.pictures, given.only)
    print("\n".join(lines) if lines else "everything fits")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
