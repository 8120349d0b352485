"""Reports against the HTML parser of the standard library and the tables they come from."""

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from counterlens.report import render
from counterlens.report.html import html
from counterlens.report.kit import plots
from counterlens.report.kit.svg import Frame, ticks
from counterlens.report.pages.warnings import warnings
from counterlens.runs import Number, Run
from counterlens.workflows.report import report
from report_runs import CLASSES, audit_run

VOID = {"meta", "link", "img", "br", "hr", "input"}
SHAPES = {"path", "rect", "circle"}


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.loads: list[str] = []
        self.headings: list[int] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"<{tag}> repeats an attribute"
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.links.append(str(found.get("href")))
        if tag == "img":
            self.images.append(found)
        if tag != "a":
            self.loads += [str(found[k]) for k in ("src", "href", "srcset", "data") if k in found]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parsed(run: Run) -> tuple[Page, str]:
    text = html(run)
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page, " ".join(" ".join(page.text).split())


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audit_run(tmp_path_factory.mktemp("report") / "audit")


def test_the_page_is_well_formed_and_loads_nothing_from_outside(audited: Run) -> None:
    page, _ = parsed(audited)
    assert len(page.ids) == len(set(page.ids))
    assert all(load.startswith("data:") for load in page.loads)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", html(audited))


def test_every_link_of_the_page_leads_somewhere_in_it(audited: Run) -> None:
    page, _ = parsed(audited)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)


def test_headings_step_down_one_level_at_a_time(audited: Run) -> None:
    page, _ = parsed(audited)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:], strict=False))


def test_every_picture_says_label_prediction_and_confidence(audited: Run) -> None:
    page, _ = parsed(audited)
    rows = audited.table("gallery")
    assert len(page.images) == len(rows) > 0
    for image, row in zip(page.images, rows, strict=True):
        alt = str(image["alt"])
        assert row["predicted"] in alt
        assert "confidence" in alt
        assert (row["label"] or "Outside") in alt
        data = str(image["src"]).removeprefix("data:image/png;base64,")
        assert base64.b64decode(data) == (audited.folder / row["image"]).read_bytes()


def test_every_number_is_shown_with_n_interval_and_protocol(audited: Run) -> None:
    _, text = parsed(audited)
    for key, number in audited.numbers.items():
        row = text.split("Every number of result.json")[1].split(f" {key} ", 1)[1][:260]
        assert f"{number.n:,}" in row
        assert number.protocol[:40] in row
        if number.value is None:
            assert number.reason in row


def test_verdicts_reasons_and_gates_are_told(audited: Run) -> None:
    _, text = parsed(audited)
    for words in (
        "do not quote",
        "a black-box attack beat the white-box ones",
        "trusted",
        "1 of 2 gates failed",
        "robust.l2-0.5.accuracy>=0.4",
        "RGB and BGR score alike",
        "10 of 10 classes of the data were found in the model",
        "Weak class: cat",
    ):
        assert words in text, words


def test_names_from_data_cannot_inject_markup(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    run = audit_run(tmp_path / "r", model=evil)
    run.write_table(
        "per_class", [{**run.table("per_class")[0], "class": evil, "confused_with": evil}]
    )
    run.write_table(
        "confidence_radius", [{"set": evil, "norm": "l2", "radius": 0.1, "confidence": 1, "n": 3}]
    )
    run.write_table(
        "robust_curve",
        [{"norm": evil, "radius": 0.1, "accuracy": 1, "low": 0, "high": 1, "n": 3, "kind": evil}],
    )
    run.write_table("odd <table>", [{evil: evil}])
    text = html(run)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    parsed(run)


@pytest.mark.parametrize("command", ["train", "doctor", "explain", "something-new"])
def test_any_command_has_a_page_and_unknown_tables_are_shown(tmp_path: Path, command: str) -> None:
    run = Run.create(tmp_path / "r", command, {"model": "m"})
    run.write_table(
        "history", [{"epoch": e, "loss": 1 / (e + 1), "robust": None} for e in range(5)]
    )
    run.write_table("thoughts", [{"who": "unit 7", "says": "water", "often": True, "with": [1, 2]}])
    run.add_numbers({"my.number": Number(0.25, 4, 0.1, 0.5, "by hand")})
    _, text = parsed(run)
    for words in ("unit 7", "water", "yes", "1, 2", "my.number", "by hand", "History", "0.25"):
        assert words in text, words
    assert 'aria-label="loss.' in html(run)


def test_an_empty_run_still_renders(tmp_path: Path) -> None:
    _, text = parsed(Run.create(tmp_path / "r", "audit", {}))
    assert "nothing stands out" in text


def test_an_audit_without_extras_leaves_their_sections_out(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {"model": "m", "data": "d"})
    run.add_numbers({"accuracy.top1": Number(1.0, 900, 0.99, 1.0, "p")})
    page, text = parsed(run)
    assert "accuracy" in page.ids
    assert not {"ood", "robustness", "bias", "doctor", "gates"} & set(page.ids)
    assert "nothing stands out" in text


def test_empty_bins_and_missing_pictures_do_no_harm(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    empty = {
        "when": "before",
        "bin_low": 0.0,
        "bin_high": 1.0,
        "n": 0,
        "confidence": None,
        "accuracy": None,
    }
    run.write_table("reliability", [empty])
    gone = {
        "group": "mistakes",
        "image": "images/gone.png",
        "id": "1",
        "label": "a",
        "predicted": "b",
    }
    run.write_table("gallery", [{**gone, "confidence": 1.0}])
    page, _ = parsed(run)
    assert page.images == []


def test_rendering_twice_gives_the_same_bytes_and_changes_nothing_else(tmp_path: Path) -> None:
    run = audit_run(tmp_path / "r")
    first = render(run).read_bytes()
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    assert report(run.folder) == run.folder
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before
    assert (run.folder / "report.html").read_bytes() == first
    assert len(first) < 600_000


def test_rendering_needs_no_torch(tmp_path: Path) -> None:
    run = audit_run(tmp_path / "r")
    code = (
        "import sys; from counterlens.workflows.report import report; "
        f"from counterlens.workflows.compare.run import compare; report({str(run.folder)!r}); "
        f"compare([{str(run.folder)!r}] * 2, out={str(tmp_path / 'c')!r}); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'timm', 'PIL')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_model_card_quotes_what_may_be_quoted(audited: Run) -> None:
    _, text = parsed(audited)
    card = text.split("## Evaluation")[1].split("What was run")[0]
    assert "| Robust accuracy, l₂ 0.5 |" in card
    assert "l∞ 8/255" not in card
    assert "1 attack result(s) are left out" in card


def titles(run: Run) -> list[str]:
    return [worry.title for worry in warnings(run)]


def test_warnings_need_the_whole_interval_beyond_the_limit(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    run.add_numbers({"ood.x.auroc": Number(0.88, 900, 0.85, 0.91, "p")})
    assert titles(run) == []
    run.add_numbers({"ood.x.auroc": Number(0.88, 900, 0.86, 0.89, "p")})
    assert titles(run) == ["It does not notice x"]


def test_guessing_is_called_guessing(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    run.note(classes=10)
    run.add_numbers({"accuracy.top1": Number(0.1, 900, 0.08, 0.12, "p")})
    assert titles(run) == ["Hardly better than guessing"]
    run.add_numbers({"accuracy.top1": Number(0.3, 900, 0.28, 0.32, "p")})
    assert titles(run) == []


def test_a_temperature_that_mends_makes_the_worry_less_grave(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", "audit", {})
    run.write_table(
        "reliability",
        [
            {
                "when": "before",
                "bin_low": 0,
                "bin_high": 1,
                "n": 9,
                "confidence": 0.9,
                "accuracy": 0.5,
            }
        ],
    )
    run.add_numbers({"calibration.ece": Number(0.1, 900, 0.08, 0.12, "p")})
    (worry,) = warnings(run)
    assert (worry.level, worry.title) == ("act", "Its confidence is off: too sure of itself")
    run.add_numbers(
        {
            "calibration.ece_scaled": Number(0.01, 900, 0.0, 0.02, "p"),
            "calibration.temperature": Number(2.5, 100, 2.4, 2.6, "p"),
        }
    )
    (worry,) = warnings(run)
    assert worry.level == "watch"
    assert "2.5" in worry.text


def test_each_rule_speaks_of_the_fabricated_audit(audited: Run) -> None:
    said = " / ".join(titles(audited))
    for words in (
        "gate failed",
        "do not quote",
        "Tiny changes",
        "Doctor",
        "Weak class: cat",
        "familiar",
    ):
        assert words in said, words


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0, 1), (0, 0.031), (-2, 3), (0.7, 0.71), (0, 4e4)):
        found = ticks(low, high)
        assert 3 <= len(found) <= 8
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
        steps = {round(b - a, 9) for a, b in pairwise(found)}
        assert len(steps) == 1


def test_a_curve_puts_its_points_where_they_belong() -> None:
    svg = str(
        plots.curves([plots.Series("a", [(0, 0), (1, 1)])], title="t", x_label="x", y_label="y")
    )
    frame = Frame()
    marks = re.findall(r'<circle class="mark s0" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert [(float(x), float(y)) for x, y in marks] == [
        (frame.left, frame.height - frame.bottom),
        (frame.width - frame.right, frame.top),
    ]


def test_a_towering_reference_is_cut_off_and_its_height_written() -> None:
    bins = [{"bin_low": 0.0, "bin_high": 0.5}, {"bin_low": 0.5, "bin_high": 1.0}]
    own = [{**b, "share": 0.1} for b in bins]
    towering = [{**bins[0], "share": 0.2}, {**bins[1], "share": 0.8}]
    assert "80% ↑" in plots.histogram(own, towering, title="t")
    assert "↑" not in plots.histogram(own, own, title="t")


def test_series_differ_by_more_than_colour() -> None:
    swatches = [str(plots.swatch(i)) for i in range(4)]
    stripped = {re.sub(r" s\d", "", swatch) for swatch in swatches}
    assert len(stripped) == 4


def test_all_classes_are_in_the_class_table(audited: Run) -> None:
    _, text = parsed(audited)
    assert all(name in text.split("Class by class")[1] for name in CLASSES)
