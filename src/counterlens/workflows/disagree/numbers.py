"""What a search for disagreement says in numbers, and in one sentence: may the new one go out?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from counterlens.data.synthetic import captions
from counterlens.explanations.disagreement import SURE, UNSURE
from counterlens.metrics.intervals.closed_form import mean_interval, newcombe_paired, wilson
from counterlens.runs import Number, key_part
from counterlens.workflows.disagree.real import RealAnswers
from counterlens.workflows.disagree.search import WAYS

TableRows = Sequence[dict[str, Any]]


def numbers(rows: TableRows, judges: Sequence[str]) -> dict[str, Number]:
    """Means over all images of each way, none left out."""
    results: dict[str, Number] = {}
    for way in WAYS:
        part = [row for row in rows if row["way"] == way]
        up, down = part[0]["up"], part[0]["down"]
        how = f"{up} raised, {down} lowered; all {len(part)} images, as PNG files read from disk"
        key = f"disagree.{way}"
        results[f"{key}.succeeded"] = share(
            [row["succeeded"] for row in part], f"p ≥ {SURE:g} against p ≤ {UNSURE:g}; {how}"
        )
        for column, words in (("p_up", f"mean confidence of {up}"),
                              ("p_down", f"mean confidence of {down}"),
                              ("start_p_up", f"the same of {up} at the start"),
                              ("start_p_down", f"the same of {down} at the start")):  # fmt: skip
            results[f"{key}.{column}"] = mean([row[column] for row in part], (0, 1),
                                            f"{words}; {how}")  # fmt: skip
        for column, words in (("saturated", "of the images"), ("start_saturated", "of the starts")):
            results[f"{key}.{column}"] = mean(
                [row[column] for row in part], (0, 1),
                f"mean share of channel values at 0 or 255 {words}; {how}",
            )  # fmt: skip
        for name in sorted({k.removesuffix(".p_up") for k in part[0] if k.endswith(".p_up")}):
            gaps = [row[f"{name}.p_up"] - row[f"{name}.p_down"] for row in part]
            results[f"{key}.gap_{key_part(name)}"] = mean(
                gaps, (-1, 1), f"mean difference of confidences after {name}; {how}"
            )
        for judge in judges:
            if f"{judge}.p" in part[0]:
                near = [
                    abs(row[f"{judge}.p"] - row["p_up"]) < abs(row[f"{judge}.p"] - row["p_down"])
                    for row in part
                ]
                results[f"{key}.sides_{key_part(judge)}"] = share(
                    near, f"{judge} sides with {up}: its confidence is nearer to that one's; {how}"
                )
    return results


def real_numbers(real: Sequence[RealAnswers], names: tuple[str, str]) -> dict[str, Number]:
    """The rate of each error on real images: per class, of all, and what it does to accuracy."""
    results: dict[str, Number] = {}
    for way, word in enumerate(WAYS):
        up, down = names[way], names[1 - way]
        for one in real:
            key = f"disagree.{word}.real_{key_part(captions.word(one.name))}"
            results[key] = _rate(one, way, f"real images of {one.name}", up, down)
        results[f"disagree.{word}.real"] = _rate(
            total(real), way, f"real images of {len(real)} classes", up, down
        )
    all_ = total(real)
    protocol = f"accuracy of {names[1]} less that of {names[0]} on the same real images"
    if all_.n:
        change = (all_.second - all_.first) / all_.n
        low, high = newcombe_paired(all_.both, all_.first, all_.second, all_.neither)
        results["disagree.real_change"] = Number(
            change, all_.n, -high, -low, f"{protocol}; Newcombe paired interval"
        )
    else:
        results["disagree.real_change"] = Number.missing("no real image of the classes", protocol)
    return results


def total(real: Sequence[RealAnswers]) -> RealAnswers:
    """The sum over all classes."""
    parts = ("both", "first", "second", "neither")
    return RealAnswers("all", *(sum(getattr(one, part) for one in real) for part in parts))


def verdict(results: dict[str, Number], real: Sequence[RealAnswers], names: tuple[str, str]) -> str:
    """One line: what the second classifier breaks and mends on real images, and whether it pays."""
    change = results["disagree.real_change"]
    if change.value is None or change.low is None or change.high is None:
        return f"{names[1]} after {names[0]}: undecided, {change.reason}."
    word = "no clear difference"
    if change.high < 0:
        word = "worse"
    elif change.low > 0:
        word = "better"
    broken, mended = results["disagree.first.real"], results["disagree.second.real"]
    most = max(real, key=lambda one: one.first / one.n if one.n else 0.0)
    where = f", most often {captions.word(most.name)} ({most.first} of {most.n})"
    return (
        f"{names[1]} after {names[0]}: {word}. On {change.n:,} real images it breaks "
        f"{_words(broken)}{where if most.first else ''}, mends {_words(mended)}; accuracy "
        f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]."
    )


def _words(number: Number) -> str:
    assert number.value is not None and number.low is not None and number.high is not None
    return f"{number.value:.1%} [{number.low:.1%}, {number.high:.1%}]"


def _rate(one: RealAnswers, way: int, of: str, up: str, down: str) -> Number:
    protocol = f"{of} that {up} answers right and {down} wrong"
    if not one.n:
        return Number.missing("no real image of the class", protocol)
    errors = one.errors(way)
    return Number(errors / one.n, one.n, *wilson(errors, one.n), protocol)


def share(flags: Sequence[bool], protocol: str) -> Number:
    """How many of some images, with Wilson's interval."""
    hits = sum(flags)
    return Number(hits / len(flags), len(flags), *wilson(hits, len(flags)), protocol)


def mean(values: Sequence[float], bounds: tuple[float, float], protocol: str) -> Number:
    """The mean over images with its interval."""
    table = np.asarray(values, dtype=np.float64)
    low, high = mean_interval(table, bounds) if len(table) > 1 else (None, None)
    return Number(float(table.mean()), len(table), low, high, protocol)
