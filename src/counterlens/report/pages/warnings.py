"""What to worry about: a few stated rules that turn the numbers of an audit into plain sentences.

A rule speaks only when the whole 95 % interval lies on the bad side of its limit, so that a small
sample does not raise false alarms. The limits are judgement, not science; the report prints them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Level, Worry
from counterlens.report.pages.audit import groups
from counterlens.runs import Number, Run
from counterlens.runs.keys import (
    meaning,
    reasons,
    show,
    show_interval,
    show_number,
    subject_words,
    verdict,
)

ECE_HIGH = 0.05
AUROC_LOW = 0.90
MMC_HIGH = 0.50
ROBUST_LOW = 0.20
WORST_AUROC_LOW = 0.50
GAP_HIGH = 0.10
SHAPE_LOW = 0.50
FEW = 200
GUESSES = 2.0

RULES = (
    "The doctor failed or warned; a gate failed; an attack result is not trusted.",
    f"Calibration error above {ECE_HIGH:.0%}; less grave where a temperature mends it.",
    f"Accuracy below {GUESSES:g} times that of guessing.",
    "A class whose whole interval lies below the interval of the overall accuracy.",
    "A group clearly worse than the images outside it, at a level that holds for all groups.",
    f"OOD: AUROC below {AUROC_LOW:.0%}, mean confidence above {MMC_HIGH:.0%}, "
    f"worst-case AUROC below {WORST_AUROC_LOW:.0%}.",
    f"Robust accuracy below {ROBUST_LOW:.0%} at any tested radius.",
    f"Background gap above {GAP_HIGH:.0%}; shape bias below {SHAPE_LOW:.0%}.",
    f"Fewer than {FEW} images behind the accuracy.",
    "Each rule speaks only if the whole 95 % interval is beyond its limit.",
)


def warnings(run: Run) -> list[Worry]:
    """All that the rules find, what to act on first."""
    numbers = {k: n for k, n in run.numbers.items() if n.value is not None}
    listed = [
        *_doctor(run.table("doctor")),
        *_gates(run.table("gates")),
        *_guessing(numbers, run.manifest.get("classes")),
        *_trust(numbers),
        *_robust(numbers),
        *_calibration(numbers, run.table("reliability")),
        *_ood(numbers),
        *_classes(numbers, run.table("per_class")),
        *groups.warnings(run),
        *_bias(numbers),
        *_few(numbers),
    ]
    return sorted(listed, key=lambda worry: worry.level != "act")


def _doctor(rows: Sequence[Mapping[str, Any]]) -> Iterator[Worry]:
    for row in rows:
        if row["status"] in ("fail", "warn"):
            level: Level = "act" if row["status"] == "fail" else "watch"
            message = str(row["found"]).rstrip(".")
            text = f"{message[:1].upper()}{message[1:]}. {row.get('fix') or ''}"
            yield Worry(level, f"Doctor: {row['check']}", text, "doctor")


def _gates(rows: Sequence[Mapping[str, Any]]) -> Iterator[Worry]:
    failed = [row["gate"] for row in rows if not row["passed"]]
    if failed:
        title = (
            "A release gate failed" if len(failed) == 1 else f"{len(failed)} release gates failed"
        )
        yield Worry("act", title, ", ".join(failed), "gates")


def _guessing(numbers: Mapping[str, Number], classes: object) -> Iterator[Worry]:
    top = numbers.get("accuracy.top1")
    if top and isinstance(classes, int) and _high(top) < GUESSES / classes:
        text = (
            f"{_value('accuracy.top1', top)} of the answers are right; guessing among {classes} "
            f"classes gives {show(1 / classes, 'share')}. See the doctor and the class matching."
        )
        yield Worry("act", "Hardly better than guessing", text, "accuracy")


def _trust(numbers: Mapping[str, Number]) -> Iterator[Worry]:
    for key, number in numbers.items():
        word = verdict(number)
        if word in ("weak", "do not quote"):
            level: Level = "act" if word == "do not quote" else "watch"
            why = "; ".join(reasons(number)) or "see the trust table"
            text = f"{why[:1].upper()}{why[1:].rstrip('.')}."
            yield Worry(level, f"{meaning(key).label}: {word}", text, "robustness")


def _robust(numbers: Mapping[str, Number]) -> Iterator[Worry]:
    for key, number in numbers.items():
        m = meaning(key)
        if m.area != "robust" or m.metric != "accuracy" or _high(number) >= ROBUST_LOW:
            continue
        where = subject_words("robust", m.subject)
        yield Worry(
            "act",
            f"Tiny changes break it ({where})",
            f"Only {_value(key, number)} of the images stay right when an attacker may move each "
            f"picture by {where}.",
            "robustness",
        )


def _calibration(
    numbers: Mapping[str, Number], reliability: Sequence[Mapping[str, Any]]
) -> Iterator[Worry]:
    raw, scaled = numbers.get("calibration.ece"), numbers.get("calibration.ece_scaled")
    if not raw or _low(raw) <= ECE_HIGH:
        return
    before = [row for row in reliability if row.get("when") == "before" and row["n"]]
    lean = sum(row["n"] * (row["confidence"] - row["accuracy"]) for row in before)
    side = "too sure of itself" if lean > 0 else "less sure than it should be"
    text = f"Stated confidence and accuracy differ by {_value('calibration.ece', raw)}."
    mended = scaled is not None and _low(scaled) <= ECE_HIGH
    temperature = numbers.get("calibration.temperature")
    if mended and scaled and temperature:
        left = _value("calibration.ece", scaled)
        text += f" Dividing its logits by {show(temperature.value)} brings this to {left}."
    title = f"Its confidence is off: {side}"
    yield Worry("watch" if mended else "act", title, text, "confidence")


def _ood(numbers: Mapping[str, Number]) -> Iterator[Worry]:
    by_metric: dict[str, dict[str, Number]] = {}
    for key, number in numbers.items():
        m = meaning(key)
        if m.area == "ood":
            by_metric.setdefault(m.metric, {})[m.subject] = number
    aurocs, passed = by_metric.get("auroc", {}), by_metric.get("fpr95", {})
    unseen = {name: n for name, n in aurocs.items() if _high(n) < AUROC_LOW}
    if unseen:
        text = f"How well confidence tells them apart (AUROC): {_listed('ood.auroc', unseen)}."
        worst = max((n for n in unseen if n in passed), key=lambda n: _low(passed[n]), default=None)
        if worst is not None:
            slips = _value("ood.fpr95", passed[worst])
            text += f" If it accepts 95 % of its own data, {slips} of {worst} slips through."
        yield Worry("act", f"It does not notice {_names(unseen)}", text, "ood")
    sure = {
        name: n
        for name, n in by_metric.get("mmc", {}).items()
        if name not in unseen and _low(n) > MMC_HIGH
    }
    if sure:
        text = f"Mean confidence on pictures of nothing it knows: {_listed('ood.mmc', sure)}."
        yield Worry("watch", f"Too sure about {_names(sure)}", text, "ood")
    fooled = {
        n: v for n, v in by_metric.get("worst_auroc", {}).items() if _high(v) < WORST_AUROC_LOW
    }
    if fooled:
        text = f"After a small attack on them AUROC falls: {_listed('ood.worst_auroc', fooled)}."
        yield Worry("watch", "Foreign pictures can be made to look familiar", text, "ood")


def _names(numbers: Mapping[str, Number]) -> str:
    names = list(numbers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _listed(key: str, numbers: Mapping[str, Number]) -> str:
    return ", ".join(f"{name} {_value(key, number)}" for name, number in numbers.items())


def _classes(numbers: Mapping[str, Number], rows: Sequence[Mapping[str, Any]]) -> Iterator[Worry]:
    overall = numbers.get("accuracy.top1")
    weak = [r for r in rows if overall and r.get("high") is not None and r["high"] < _low(overall)]
    for row in sorted(weak, key=lambda r: r["accuracy"])[:3]:
        taken = ""
        if row.get("confused_with") and row.get("confused_share"):
            part = show(row["confused_share"], "share", digits=0)
            taken = f" {part} of them are taken for {row['confused_with']}."
        text = (
            f"{show(row['accuracy'], 'share')} of {row['n']:,} are right, overall "
            f"{show(overall.value if overall else None, 'share')}.{taken}"
        )
        yield Worry("watch", f"Weak class: {row['class']}", text, "accuracy")
    if len(weak) > 3:
        names = ", ".join(str(r["class"]) for r in sorted(weak, key=lambda r: r["accuracy"])[3:11])
        yield Worry("watch", f"{len(weak) - 3} more weak classes", names, "accuracy")


def _bias(numbers: Mapping[str, Number]) -> Iterator[Worry]:
    gap, shape = numbers.get("bias.background_gap"), numbers.get("bias.shape")
    if gap and _low(gap) > GAP_HIGH:
        text = f"Swapping backgrounds costs {_value('bias.background_gap', gap)} of accuracy."
        yield Worry("act", "It leans on backgrounds", text, "bias")
    if shape and _high(shape) < SHAPE_LOW:
        text = (
            f"Where shape and texture disagree it follows shape in {_value('bias.shape', shape)}."
        )
        yield Worry("watch", "It decides by texture", text, "bias")


def _few(numbers: Mapping[str, Number]) -> Iterator[Worry]:
    top = numbers.get("accuracy.top1")
    if top and top.n < FEW:
        text = f"All of this rests on {top.n:,}; the intervals are wide for a reason."
        yield Worry("watch", "Few images", text, "accuracy")


def _low(number: Number) -> float:
    bound = number.low if number.low is not None else number.value
    assert bound is not None
    return bound


def _high(number: Number) -> float:
    bound = number.high if number.high is not None else number.value
    assert bound is not None
    return bound


def _value(key: str, number: Number) -> str:
    unit = meaning(key).unit
    return f"{show_number(number, unit)} {show_interval(number, unit)}".strip()
