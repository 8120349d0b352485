"""The sections of an audit: accuracy, confidence, out-of-distribution, robustness, bias, doctor."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Section,
    Table,
    Text,
    Tile,
)
from counterlens.report.kit.parts import (
    digits,
    galleries,
    number_list,
    number_matrix,
    status_badge,
    trust_badge,
)
from counterlens.report.pages.audit import (
    attacks,
    backgrounds,
    confidence,
    corruptions,
    groups,
    heads,
    ood,
    operating,
    slices,
)
from counterlens.runs import Number, Run
from counterlens.runs.keys import meaning, reasons, show, show_interval

TABLES = (
    "per_class",
    "confusions",
    "reliability",
    "response_rate",
    "confidence_hist",
    "gallery",
    "doctor",
    "matching",
    "robust_curve",
    "confidence_radius",
    "gates",
    "trust",
    *groups.TABLES,
    *heads.TABLES,
    "ood_scores",
    "ood_score_pairs",
    "corruptions",
    *backgrounds.TABLES,
    "robust_classes",
    "robust_confusions",
    "grids",
    "published",
    *slices.TABLES,
    *operating.TABLES,
)
_TILES = (
    "accuracy.top1",
    "multilabel.auroc",
    "multilabel.accuracy",
    "multilabel.ece",
    "multilabel.exact_match",
    "calibration.ece",
    "calibration.ece_scaled",
    "selective.aurra",
    "bias.shape",
    "bias.background_gap",
)
_SMALL_CLASSES = 60


def tiles(numbers: Mapping[str, Number]) -> list[Tile]:
    """The numbers a reader looks for first; the worst of each kind where there are several."""
    keys = [k for k in _TILES if k in numbers]
    for area, metric in (("ood", "auroc"), ("ood", "worst_auroc")):
        several = [k for k in numbers if meaning(k).area == area and meaning(k).metric == metric]
        keys += sorted(several, key=lambda k: _order(numbers[k]))[:1]
    keys += [k for k in numbers if meaning(k).area == "robust" and meaning(k).metric == "accuracy"]
    return [_tile(k, numbers[k]) for k in keys]


def _order(number: Number) -> float:
    return number.value if number.value is not None else 2.0


def _tile(key: str, number: Number) -> Tile:
    m = meaning(key)
    lowest = ("ood.auroc", "ood.worst_auroc")
    label = f"{m.label} (lowest)" if f"{m.area}.{m.metric}" in lowest else m.label
    return Tile(
        label,
        show(number.value, m.unit, digits=digits(key)),
        show_interval(number, m.unit, digits=digits(key)),
        number.n,
        number.protocol if number.value is not None else f"{number.reason}. {number.protocol}",
        plots.interval_bar(number.value, number.low, number.high) if m.unit == "share" else None,
        trust_badge(number),
        reasons(number),
    )


def gate_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Release gates and how they went."""
    if not rows:
        return None
    body = [
        [
            Cell("", badge=status_badge("passed" if row["passed"] else "failed")),
            Cell(str(row["gate"])),
            Cell(show(row["value"]), sort=row["value"]),
            Cell(str(row.get("why", ""))),
        ]
        for row in rows
    ]
    columns = [Column("Result"), Column("Required"), Column("Value", numeric=True), Column("Why")]
    return Table("Release gates", columns, body, quiet=True)


def sections(run: Run) -> list[Section]:
    """All sections for which the run has something to show."""
    numbers = run.numbers
    out = [
        _accuracy(run, numbers),
        heads.section(run),
        groups.section(run),
        slices.section(run),
        _labels(numbers),
        confidence.section(run),
        operating.section(run),
        ood.section(run),
        corruptions.section(run),
        backgrounds.section(run),
        attacks.section(run),
        _bias(numbers),
        _pictures(run),
        _doctor(run),
        _matching(run),
    ]
    return [section for section in out if section and section.blocks]


def _area(numbers: Mapping[str, Number], *areas: str) -> dict[str, Number]:
    return {k: n for k, n in numbers.items() if meaning(k).area in areas}


def _accuracy(run: Run, numbers: Mapping[str, Number]) -> Section:
    blocks: list[Block] = []
    own = _area(numbers, "accuracy")
    if own:
        blocks.append(number_list(own, caption="Accuracy"))
    rows = run.table("per_class")
    if rows:
        blocks.append(_class_table(rows))
    confusions = run.table("confusions")
    if confusions:
        blocks.append(_confusion_table(confusions))
    blocks += galleries(
        run, ["mistakes"], {"mistakes": "Worst mistakes: wrong and most sure of it"}
    )
    return Section(
        "accuracy", "Accuracy", blocks, "What it gets right, class by class, and what it mixes up."
    )


def _labels(numbers: Mapping[str, Number]) -> Section | None:
    """Label by label, of a model that gives an image several."""
    means = _area(numbers, "multilabel")
    if not means:
        return None
    blocks: list[Block] = [number_list(means, caption="Over all labels")]
    blocks += number_matrix(numbers, "label", caption="Label by label", subject="Label") or ()
    lead = "Each label is a question of its own: its logit through a sigmoid, given from 0.5 on."
    return Section("labels", "Labels", blocks, lead)


def _class_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for row in rows:
        value = Cell(
            show(row["accuracy"], "share"),
            sub=f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
            if row.get("low") is not None
            else "",
            sort=row["accuracy"],
            bar=plots.interval_bar(row["accuracy"], row.get("low"), row.get("high")),
        )
        mixed = row.get("confused_with")
        share = row.get("confused_share")
        body.append(
            [
                Cell(str(row["class"])),
                Cell(f"{row['n']:,}", sort=row["n"]),
                value,
                Cell(show(row.get("confidence"), "share"), sort=row.get("confidence")),
                Cell(str(mixed), sub=show(share, "share"), sort=share)
                if mixed and share
                else Cell("–", sort=0.0),
            ]
        )
    columns = [
        Column("Class"),
        Column("n", numeric=True),
        Column("Accuracy", numeric=True, sub="95 % interval"),
        Column("Mean confidence", numeric=True),
        Column("Mostly taken for", sub="share of the class"),
    ]
    folded = len(rows) > _SMALL_CLASSES
    return Table("Class by class", columns, body, sortable=True, folded=folded)


def _confusion_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    top = sorted(rows, key=lambda row: -row["count"])[:10]
    most = max((row["share"] for row in top), default=1.0) or 1.0
    body = [
        [
            Cell(str(row["true"])),
            Cell(str(row["predicted"])),
            Cell(f"{row['count']:,}", sort=row["count"]),
            Cell(
                show(row["share"], "share"),
                sort=row["share"],
                bar=plots.share_bar(row["share"], most),
            ),
        ]
        for row in top
    ]
    columns = [
        Column("True class"),
        Column("Taken for"),
        Column("Images", numeric=True),
        Column("Share of the true class", numeric=True),
    ]
    return Table("Most frequent confusions", columns, body, sortable=True)


def _bias(numbers: Mapping[str, Number]) -> Section | None:
    own = _area(numbers, "bias")
    if not own:
        return None
    block = number_list(own, caption="Bias")
    lead = "Whether it looks at the object, and at its shape or only at its texture."
    return Section("bias", "Bias", [block], lead)


def _pictures(run: Run) -> Section | None:
    groups = [
        g
        for g in dict.fromkeys(row["group"] for row in run.table("gallery"))
        if g != "mistakes" and not g.startswith(("ood:", "slice:", backgrounds.PREFIX))
    ]
    shown = galleries(run, groups, {})
    return Section("pictures", "Pictures", shown) if shown else None


def _doctor(run: Run) -> Section | None:
    rows = run.table("doctor")
    if not rows:
        return None
    body = [
        [
            Cell("", badge=status_badge(str(row["status"])), sort=str(row["status"])),
            Cell(str(row["check"])),
            Cell(str(row["found"])),
            Cell(_sure(row.get("sure"))),
            Cell(str(row.get("fix") or "–")),
        ]
        for row in rows
    ]
    columns = [
        Column("Status"),
        Column("Check"),
        Column("Found"),
        Column("How sure"),
        Column("Fix"),
    ]
    counts = {s: sum(row["status"] == s for row in rows) for s in ("ok", "warn", "fail", "skipped")}
    counted = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
    fine = not counts["warn"] + counts["fail"]
    table = Table("Is the classifier wrapped right?", columns, body, folded=fine)
    return Section(
        "doctor", "Doctor", [Text(f"{len(rows)} checks before any number: {counted}."), table]
    )


def _sure(value: object) -> str:
    return show(value, "share", digits=0) if isinstance(value, float) else str(value or "–")


def _matching(run: Run) -> Section | None:
    rows = run.table("matching")
    if not rows:
        return None
    missing = sum(row.get("model_class") in (None, "") for row in rows)
    body = [
        [
            Cell(str(row["data_class"])),
            Cell(str(row.get("model_class") or "–")),
            Cell(
                str(row.get("how") or ""),
                badge=Badge("no match", "warn") if row.get("model_class") in (None, "") else None,
            ),
        ]
        for row in rows
    ]
    columns = [Column("Class of the data"), Column("Class of the model"), Column("Matched by")]
    lead = f"{len(rows) - missing} of {len(rows)} classes of the data were found in the model."
    table = Table("Class names", columns, body, sortable=len(rows) > 4, folded=not missing)
    return Section("matching", "Class matching", [Text(lead), table])
