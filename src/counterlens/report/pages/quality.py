"""The page of an evaluation: methods of counterfactuals across, what was measured down."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Picture,
    Protocols,
    Section,
    Strip,
    Table,
    Text,
)
from counterlens.report.kit.parts import embed, number_cell, plain_table
from counterlens.runs import Number, Run
from counterlens.runs.keys import meaning, metric_words, show, show_interval

TABLES = ("quality", "study")
GROUPS = (
    ("Validity", ("flipped", "sure", "confidence")),
    ("Truth", ("agreed", "judged")),
    ("Closeness", ("l2", "l2_inside", "l2_outside", "lpips", "lpips_inside", "lpips_outside")),
    ("Realism", ("kid", "nearest", "nearest_l2")),
    ("Sparsity", ("changed", "smoothness")),
    ("Cost", ("seconds", "denoiser_passes", "classifier_passes")),
)
STRIPS = 16
_HIDDEN = ("image", "original", "mask", "answers")
_ARROWS = {"up": "higher is better", "down": "lower is better", "": ""}

_Row = Mapping[str, Any]


def sections(run: Run) -> list[Section]:
    """The table, the gaps, the pictures, and where the last method failed."""
    rows = run.table("quality")
    if not rows:
        return []
    arms = list(dict.fromkeys(str(row["method"]) for row in rows))
    parts = [_table(run, arms), _gaps(run, arms), _pictures(run, rows, arms)]
    parts += _failures(run, rows, arms)
    parts.append(_study(run, rows))
    return [section for section in parts if section.blocks]


def _table(run: Run, arms: Sequence[str]) -> Section:
    numbers = {k: n for k, n in run.numbers.items() if meaning(k).area == "quality"}
    guides = {str(row["method"]): str(row["guide"]) for row in run.table("quality")}
    blocks = _matrix(numbers, "quality", arms, "Method by method", guides)
    unchanged = numbers.get("quality.original.kid")
    if unchanged is not None and unchanged.value is not None:
        ends = show_interval(unchanged)
        blocks.insert(1, Text(f"KID of the pictures unchanged: {show(unchanged.value)} {ends}."))
    text = (
        "Every method turned the same pictures to the same targets. The guide is the model whose "
        "answer was to change; truth is what classifiers answer that took no part. Intervals are "
        "95 %, over pictures."
    )
    return Section("quality", "How good the counterfactuals are", blocks, text, "Quality")


def _gaps(run: Run, arms: Sequence[str]) -> Section:
    numbers = {k: n for k, n in run.numbers.items() if meaning(k).area == "quality_gap"}
    pairs = list(dict.fromkeys(meaning(k).subject for k in numbers))
    blocks = _matrix(numbers, "quality_gap", pairs, f"{arms[-1]} less each other method", {})
    text = f"{arms[-1]} less the other, on the same pictures, targets and masks. 0: no difference."
    return Section("gaps", "Paired differences", blocks, text)


def _matrix(
    numbers: Mapping[str, Number],
    area: str,
    subjects: Sequence[str],
    caption: str,
    guides: Mapping[str, str],
) -> list[Block]:
    """Metrics down, subjects across."""
    metrics = list(dict.fromkeys(meaning(k).metric for k in numbers))
    known = [name for _, names in GROUPS for name in names]
    others = sorted(name for name in metrics if name not in known)
    groups = [(w, [*n, *(others if w == "Truth" else [])]) for w, n in GROUPS]
    body = []
    for word, names in groups:
        for name in (n for n in names if n in metrics):
            cells = [
                _plain_cell(f"{area}.{who}.{name}", numbers.get(f"{area}.{who}.{name}"))
                for who in subjects
            ]
            better = _ARROWS[meaning(f"quality.{name}").better]
            sub = f"{word.lower()}, {better}" if better else word.lower()
            body.append([Cell(_words(name), sub=sub), *cells])
    if not body:
        return []
    heads = [
        Column(who.replace("-less-", " − "), numeric=True, sub=f"guide {guides[who]}")
        if who in guides
        else Column(who.replace("-less-", " − "), numeric=True)
        for who in subjects
    ]
    text = [
        (_words(name), line)
        for name in metrics
        for line in list(dict.fromkeys(n.protocol for k, n in numbers.items()
                                       if meaning(k).metric == name))[:1]
    ]  # fmt: skip
    count = max(number.n for number in numbers.values())
    note = f"n = {count:,} counterfactuals per method."
    return [
        Table(caption, [Column("Measured"), *heads], body, note=note),
        Protocols(text),
    ]


def _words(name: str) -> str:
    if name.startswith("agreed_"):
        return f"{name.removeprefix('agreed_')} answers the target"
    return metric_words("quality", name)


def _plain_cell(key: str, number: Number | None) -> Cell:
    cell = number_cell(key, number)
    return Cell(cell.text, cell.sub, cell.sort, cell.badge, cell.bar, cell.tone)


def _pictures(run: Run, rows: Sequence[_Row], arms: Sequence[str]) -> Section:
    text = "The first pictures, none chosen. Below each: the guide’s confidence in the target."
    blocks = _strips(run, rows, arms, STRIPS, "case")
    return Section("pictures", "Side by side", blocks, text)


def _failures(run: Run, rows: Sequence[_Row], arms: Sequence[str]) -> list[Section]:
    """Where the last method did not reach its target, or nobody else sees it."""
    last = [row for row in rows if row["method"] == arms[-1]]
    bad = {_key(row) for row in last if not row["flipped"] or row.get("agreed") == 0}
    if not bad:
        return []
    blocks: list[Block] = [
        Text(f"{len(bad)} of {len(last)}; the first {min(len(bad), STRIPS)} are shown.")
    ]
    chosen = [row for row in rows if _key(row) in bad]
    blocks += _strips(run, chosen, arms, STRIPS, "failure")
    text = f"{arms[-1]}: target not reached, or not seen by most of the independent classifiers."
    return [Section("failures", "Where it failed", blocks, text)]


def _key(row: _Row) -> tuple[str, str]:
    return str(row["id"]), str(row["target"])


def _strips(
    run: Run, rows: Sequence[_Row], arms: Sequence[str], count: int, anchor: str
) -> list[Block]:
    groups: dict[tuple[str, str], dict[str, _Row]] = {}
    for row in rows:
        groups.setdefault(_key(row), {})[str(row["method"])] = row
    strips: list[Block] = []
    for number, ((name, target), by_arm) in enumerate(list(groups.items())[:count], 1):
        first = next(iter(by_arm.values()))
        pictures = [_start(run, first)]
        pictures += [_counterfactual(run, by_arm[arm]) for arm in arms if arm in by_arm]
        pictures.append(_mask(run, first))
        known = [picture for picture in pictures if picture is not None]
        text = f"{name}, {first['predicted']}"
        strips.append(Strip(f"towards {target}", text, known, f"{anchor}-{number}"))
    return strips


def _start(run: Run, row: _Row) -> Picture | None:
    image = embed(run, row["original"])
    if image is None:
        return None
    title, before = str(row["predicted"]), show(row["before"], "share")
    alt = f"{row['id']} as it is: {title}. {row['target']} {before}."
    return Picture(image[0], alt, title, "as it is", f"{row['target']} {before}", image[1])


def _mask(run: Run, row: _Row) -> Picture | None:
    image = embed(run, row.get("mask")) if row.get("mask") else None
    if image is None:
        return None
    return Picture(image[0], "Where the object is, white", "mask", "of the object", "", image[1])


def _counterfactual(run: Run, row: _Row) -> Picture | None:
    image = embed(run, row["image"])
    if image is None:
        return None
    sure = show(row["confidence"], "share")
    others = [answer for who, answer in row["answers"].items() if who != row["guide"]]
    line = f"{row['target']} {sure}"
    sub = f"others: {', '.join(others)}" if others else ""
    alt = f"{row['method']}: {line} for {row['guide']}. {sub}"
    if not row["flipped"]:
        badge = Badge("not reached", "bad")
    elif row.get("agreed") is None:
        badge = None
    else:
        badge = Badge("seen by others", "good") if row["agreed"] else Badge("only by it", "warn")
    return Picture(image[0], alt, str(row["method"]), line, sub, image[1], badge=badge)


def _study(run: Run, rows: Sequence[_Row]) -> Section:
    pairs = run.table("study")
    text = (
        f"All {len(rows):,} images lie in images/METHOD/, described line by line in "
        "tables/quality.jsonl. tables/study.jsonl holds pairs for people to compare, drawn among "
        "those of which both guides are sure (0.8 or more), left and right by chance."
    )
    blocks: list[Block] = [Text(text)]
    if pairs:
        hidden = [{k: v for k, v in row.items() if not k.endswith("_method")} for row in pairs]
        blocks += plain_table("pairs for a study", hidden, drawn=False)
    shown = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
    blocks += plain_table("all counterfactuals", shown, drawn=False)
    return Section("study", "What is stored", blocks)
