"""Reports in a real browser: nothing is loaded, everything is reachable, everything is readable.

The oracle is Chromium itself and the contrast formula of WCAG 2.2.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterlens.report import render
from counterlens.runs import Run
from counterlens.workflows.compare.run import compare
from report_runs import PROTOCOL, around, audit_run, explain_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

# Tables that are wider than their card; more than ten columns may move inside it on a wide screen.
WIDE = """
(may_move) => {
  document.querySelectorAll('details').forEach((d) => (d.open = true));
  const own = (region) => region.querySelector('table').tHead.rows[0].cells.length;
  return [...document.querySelectorAll('.scroll')]
    .filter((region) => !(may_move && own(region) > 10))
    .filter((region) => region.scrollWidth > region.clientWidth)
    .map((region) => [region.getAttribute('aria-label'), region.scrollWidth, region.clientWidth]);
}
"""

# Composites semi-transparent backgrounds from the element up to the page.
CONTRAST = """
() => {
  const parse = (colour) => {
    const m = colour.match(/[\\d.]+/g).map(Number);
    return [m[0], m[1], m[2], m[3] ?? 1];
  };
  const light = ([r, g, b]) => {
    const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const page = parse(getComputedStyle(document.body).backgroundColor);
  const behind = (el) => {
    const layers = [];
    for (let e = el; e; e = e.parentElement)
      layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((under, top) => over(top, under), page);
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const el = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "STYLE"].includes(el.tagName)) continue;
    if (!el.checkVisibility()) continue;
    const style = getComputedStyle(el);
    const ink = parse(el.closest("svg") ? style.fill : style.color);
    const ground = behind(el);
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
    seen += 1;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([ratio.toFixed(2), el.tagName, el.className, text.slice(0, 40)]);
  }
  return [seen, bad];
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("COUNTERLENS_BROWSER") == "required":
            pytest.fail("Chromium is required here and was not found; set CHROMIUM to its path")
        pytest.skip("Chromium absent: install it or set CHROMIUM to its path")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("browser")
    plain = audit_run(root / "plain", finish=False)
    ratio = audit_run(root / "ratio", model="zoo:ratio", robust=0.6, finish=False)
    for run, size, training in ((plain, 1_480_000, "plain"), (ratio, 1_500_000, "ratio l2 0.25")):
        kind = {"family": "resnet", "attention": "none", "training": training}
        run.note(about={"parameters": size, **kind})
        run.finish()
    both = compare([plain.folder, ratio.folder], out=root / "both")
    explained = explain_run(root / "explained")
    return {
        "audit": render(plain),
        "compare": both.folder / "report.html",
        "explain": render(explained),
        "wide": render(wide_run(root / "wide")),
    }


def opened(browser: Any, path: Path, **options: Any) -> Any:
    options.setdefault("viewport", {"width": 1280, "height": 900})
    page = browser.new_page(**options)
    page.goto(path.as_uri())
    return page


def wide_run(folder: Path) -> Run:
    """Tables as wide as runs have them: long names, many columns, few rows and many."""
    run = Run.create(folder, "neurons", {"model": "zoo:cifar10-plain-small", "seed": 0})
    row = {f"column number {i}": i / 7 for i in range(16)}
    name = "paired.zoo-cifar10-plain-small-vs-zoo-cifar10-ratio-small.accuracy.top1"
    run.write_table("few rows", [{"id": f"folder/picture-{i}", **row} for i in range(2)])
    run.write_table("many rows", [{"id": f"folder/picture-{i}", **row} for i in range(9)])
    eight = {"name": name, **{f"measured thing {i}": 1 / 3 for i in range(7)}}
    run.write_table("eight columns", [eight] * 3)
    run.write_table("four columns", [{"a": name, "b": name, "c": name, "d": 1}] * 3)
    run.add_numbers({name: around(0.5, 10, 0.2, PROTOCOL)})
    run.finish()
    return run


@pytest.mark.parametrize("name", ["audit", "compare", "explain", "wide"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_page_is_wider_than_its_window_and_no_table_than_its_card(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    page = opened(browser, pages[name], viewport={"width": width, "height": 800})
    wide = page.evaluate(WIDE, width > 640)
    whole = page.evaluate("document.documentElement.scrollWidth")
    tables = page.locator(".scroll").count()
    page.close()
    assert tables >= 3
    assert wide == [] and whole <= width


@pytest.mark.slow
def test_no_kind_of_page_has_anything_wider_than_its_place(browser: Any, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "tools" / "pages.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(list((tmp_path / "runs").rglob("report.html"))) > 40


def test_the_page_asks_for_nothing_and_complains_of_nothing(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = browser.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(pages["audit"].as_uri())
    page.wait_for_load_state("networkidle")
    page.close()
    assert [url for url in asked if not url.startswith("data:")] == [pages["audit"].as_uri()]
    assert complaints == []


@pytest.mark.parametrize("name", ["audit", "compare", "explain"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_a_contrast_of_at_least_four_and_a_half(
    browser: Any, pages: dict[str, Path], name: str, scheme: str
) -> None:
    page = opened(browser, pages[name], color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    seen, bad = page.evaluate(CONTRAST)
    page.close()
    assert seen > 100  # so that no bad text was found because none was
    assert bad == []


def test_dark_and_light_are_really_different(browser: Any, pages: dict[str, Path]) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(browser, pages["audit"], color_scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds.append(sum(int(v) for v in re.findall(r"\d+", colour)[:3]))
        page.close()
    assert grounds[0] > 600 > 150 > grounds[1]


def test_tab_reaches_every_link_button_expander_and_scroll_area(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = opened(browser, pages["audit"])
    wanted = page.evaluate("""() => {
      const all = [...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')];
      const shown = all.filter((e) => e.checkVisibility() && e.getClientRects().length);
      shown.forEach((e, i) => (e.dataset.place = i));
      return shown.length;
    }""")
    assert wanted > 60
    reached = []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement?.dataset.place ?? null")
        if place is not None and int(place) not in reached:
            reached.append(int(place))
    first = page.evaluate("document.querySelector('[data-place=\"0\"]').className")
    page.close()
    assert first == "skip"
    assert sorted(reached) == list(range(wanted))
    assert reached == sorted(reached)


def test_focus_can_be_seen(browser: Any, pages: dict[str, Path]) -> None:
    page = opened(browser, pages["audit"])
    for _ in range(3):
        page.keyboard.press("Tab")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
    page.close()
    assert style == "solid"
    assert width >= 2


def test_a_picture_is_enlarged_and_closed_from_the_keyboard(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = opened(browser, pages["audit"])
    small = page.locator(".picture img").first.bounding_box()["width"]
    page.locator(".picture .open").first.focus()
    page.keyboard.press("Enter")
    large = page.locator(".picture:target img").bounding_box()["width"]
    assert large > 3 * small
    page.keyboard.press("Escape")
    assert page.locator(".picture:target").count() == 0
    assert page.evaluate("document.activeElement.className") == "open"
    page.close()


def test_the_class_table_sorts_by_button_and_reads_without_a_script(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = opened(browser, pages["audit"])
    table = page.locator("table.sortable").first
    button = table.get_by_role("button", name="Accuracy")
    values = "(t) => [...t.tBodies[0].rows].map((r) => Number(r.cells[2].dataset.sort))"
    for way, reverse in (("ascending", False), ("descending", True)):
        button.focus()
        page.keyboard.press("Enter")
        found = table.evaluate(values)
        assert found == sorted(found, reverse=reverse)
        assert table.locator(f"th[aria-sort={way}]").count() == 1
    page.close()
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(pages["audit"].as_uri())
    assert plain.locator("table.sortable").first.inner_text().count("%") >= 20
    assert plain.locator("button").count() == 0
    plain.context.close()


def test_paper_gets_ink_on_white_and_every_protocol(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = opened(
        browser, pages["audit"], color_scheme="dark", viewport={"width": 690, "height": 980}
    )
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelectorAll('details[data-print]:not([open])').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 690
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[data-print][open]').length") == 0
    data = page.pdf(format="A4")
    page.close()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type /Page\b", data)) <= 30


def test_a_slider_uncovers_the_changed_picture_by_keyboard_alone(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = opened(browser, pages["explain"])
    shown = "getComputedStyle(document.querySelector('.slider .over')).clipPath"
    half = page.evaluate(shown)
    page.locator(".slider input").focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    moved = page.evaluate(shown)
    page.keyboard.press("Home")
    whole = page.evaluate(shown)
    page.close()
    assert (half, moved, whole) == tuple(f"inset(0px 0px 0px {at}%)" for at in (50, 30, 0))
