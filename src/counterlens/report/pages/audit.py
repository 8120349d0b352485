"""The sections of an audit: accuracy, confidence, out-of-distribution, robustness, bias, doctor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import (
    Badge,
    Block,
    Cell,
    Column,
    Figure,
    Protocols,
    Row,
    Section,
    Table,
    Text,
    Tile,
)
from counterlens.report.kit.parts import (
    digits,
    galleries,
    number_cell,
    number_list,
    number_matrix,
    status_badge,
    trust_badge,
)
from counterlens.report.pages import (
    attacks,
    corruptions,
    groups,
    ood_scores,
    operating,
    slices,
)
from counterlens.runs import Number, Run
from counterlens.runs.keys import SCALED, meaning, reasons, show, show_interval

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
    "ood_scores",
    "ood_score_pairs",
    "corruptions",
    "robust_classes",
    "robust_confusions",
    "grids",
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
    return Table("Release gates", columns, body, stack=True, quiet=True)


def sections(run: Run) -> list[Section]:
    """All sections for which the run has something to show."""
    numbers = run.numbers
    made = [
        _accuracy(run, numbers),
        groups.section(run),
        slices.section(run),
        _labels(numbers),
        _confidence(run, numbers),
        operating.section(run),
        _ood(run, numbers),
        corruptions.section(run),
        attacks.section(run),
        _bias(numbers),
        _pictures(run),
        _doctor(run),
        _matching(run),
    ]
    return [section for section in made if section and section.blocks]


def _area(numbers: Mapping[str, Number], *areas: str) -> dict[str, Number]:
    return {k: n for k, n in numbers.items() if meaning(k).area in areas}


def _accuracy(run: Run, numbers: Mapping[str, Number]) -> Section:
    blocks: list[Block] = []
    found = _area(numbers, "accuracy")
    if found:
        blocks.append(number_list(found, caption="Accuracy"))
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
    return Table("Class by class", columns, body, sortable=True, folded=len(rows) > _SMALL_CLASSES)


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


def _confidence(run: Run, numbers: Mapping[str, Number]) -> Section:
    blocks: list[Block] = []
    figures = _reliability(run.table("reliability"))
    rates = sorted((row["rate"], row["accuracy"]) for row in run.table("response_rate"))
    if rates:
        figures.append(_response(rates))
    if figures:
        blocks.append(Row(figures, small=True))
    blocks += _calibration(_area(numbers, "calibration", "selective"))
    lead = "Whether its confidence can be believed, and what it gains by declining to answer."
    return Section("confidence", "Confidence", blocks, lead)


def _calibration(found: Mapping[str, Number]) -> list[Block]:
    """Each error as it is and after temperature, side by side."""
    if not found:
        return []
    plain = sorted((k for k in found if not k.endswith(SCALED)), key=lambda k: "temperature" in k)
    scaled = any(k.endswith(SCALED) for k in found)
    rows = []
    for key in plain:
        cells = [replace(number_cell(key, found[key]), more="")]
        if scaled:
            after = found.get(key + SCALED)
            cells.append(replace(number_cell(key, after), more="") if after else Cell(""))
        count = Cell(f"{found[key].n:,}", sort=found[key].n)
        rows.append([Cell(meaning(key).label, sub=key), *cells, count])
    columns = [Column("Number"), Column("As it is", numeric=True)]
    if scaled:
        columns.append(Column("After temperature", numeric=True))
    columns.append(Column("n", numeric=True))
    told = [(meaning(key).label, number.protocol) for key, number in found.items()]
    return [
        Table("Calibration and selective answering", columns, rows, quiet=True),
        Protocols(told),
    ]


def _reliability(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    words = {"before": "Reliability as it is", "after": "Reliability after temperature"}
    legend = (
        (plots.swatch(0, "bar s0"), "accuracy"),
        (plots.swatch(0, "gap over"), "too sure"),
        (plots.swatch(0, "gap under"), "not sure enough"),
    )
    figures = []
    for when in dict.fromkeys(row["when"] for row in rows):
        part = [row for row in rows if row["when"] == when]
        data = Table(
            f"Reliability, {when}",
            [
                Column("Bin"),
                *(Column(c, numeric=True) for c in ("n", "Mean confidence", "Accuracy")),
            ],
            [
                [
                    Cell(f"{100 * r['bin_low']:.0f}–{100 * r['bin_high']:.0f} %"),
                    Cell(f"{r['n']:,}"),
                    Cell(show(r["confidence"] if r["n"] else None, "share")),
                    Cell(show(r["accuracy"] if r["n"] else None, "share")),
                ]
                for r in part
            ],
        )
        title = words.get(when, f"Reliability, {when}")
        total = sum(r["n"] for r in part)
        drawn = [r for r in part if r["n"]]
        svg = plots.reliability(drawn, title=title)
        caption = f"On the dashed line, confidence equals accuracy. n = {total:,}."
        figures.append(Figure(title, svg, caption, legend, data))
    return figures


def _response(points: Sequence[tuple[float, float]]) -> Figure:
    low = min(y for _, y in points)
    svg = plots.curves(
        [plots.Series("accuracy", points)],
        title="Accuracy against response rate",
        x_label="Share of images it answers, surest first",
        y_label="Accuracy",
        x_percent=True,
        narrow=True,
        ys=(max(0.0, (low * 20 // 1 - 1) / 20), 1.0),
    )
    sample = points[:: max(1, len(points) // 20)]
    data = Table(
        "Response rate and accuracy",
        [Column("Response rate", numeric=True), Column("Accuracy", numeric=True)],
        [[Cell(show(x, "share")), Cell(show(y, "share"))] for x, y in sample],
    )
    caption = "Left: it answers only when surest. Right: it answers always."
    return Figure("Accuracy when it may decline", svg, caption, (), data)


def _ood(run: Run, numbers: Mapping[str, Number]) -> Section:
    blocks: list[Block] = []
    matrix = number_matrix(numbers, "ood", caption="Detection per set", subject="Set")
    if matrix:
        blocks += matrix
    blocks += ood_scores.blocks(run)
    rows = run.table("confidence_hist")
    names = list(dict.fromkeys(row["set"] for row in rows))
    outside = {meaning(k).subject for k in numbers if meaning(k).area == "ood"}
    inside = next((n for n in names if n == "in" or n not in outside), None)
    reference = [row for row in rows if row["set"] == inside]
    figures = [
        _histogram(name, [row for row in rows if row["set"] == name], reference, str(inside))
        for name in names
        if name != inside
    ]
    if figures:
        blocks.append(Row(figures, small=True))
    groups = [
        g for g in dict.fromkeys(r["group"] for r in run.table("gallery")) if g.startswith("ood:")
    ]
    titles = {g: f"{g.removeprefix('ood:')}: most confident" for g in groups}
    blocks += galleries(run, groups, titles)
    lead = "What it says about pictures that show none of its classes. It should be unsure."
    return Section("ood", "Out of distribution", blocks, lead, "Out-of-distribution")


def _histogram(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    reference: Sequence[Mapping[str, Any]],
    inside: str,
) -> Figure:
    svg = plots.histogram(rows, reference, title=f"Confidence on {name}")
    legend = [(plots.swatch(1, "bar s1"), name)]
    if reference:
        legend.append((plots.swatch(0, "outline"), "its own data" if inside == "in" else inside))
    n = sum(row.get("n") or 0 for row in rows)
    return Figure(name, svg, f"n = {n:,}" if n else "", legend)


def _bias(numbers: Mapping[str, Number]) -> Section | None:
    found = _area(numbers, "bias")
    if not found:
        return None
    block = number_list(found, caption="Bias")
    lead = "Whether it looks at the object, and at its shape or only at its texture."
    return Section("bias", "Bias", [block], lead)


def _pictures(run: Run) -> Section | None:
    groups = [
        g
        for g in dict.fromkeys(row["group"] for row in run.table("gallery"))
        if g != "mistakes" and not g.startswith(("ood:", "slice:"))
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
    table = Table("Is the classifier wrapped right?", columns, body, stack=True)
    counts = {s: sum(row["status"] == s for row in rows) for s in ("ok", "warn", "fail", "skipped")}
    told = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
    return Section(
        "doctor", "Doctor", [Text(f"{len(rows)} checks before any number: {told}."), table]
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
    told = f"{len(rows) - missing} of {len(rows)} classes of the data were found in the model."
    table = Table("Class names", columns, body, sortable=len(rows) > 4, folded=len(rows) > 12)
    return Section("matching", "Class matching", [Text(told), table])
