"""Groups of an audit: for whom the model is worse.

Everything is read from the logits that the run keeps, so groups cost no second pass over the images
unless a column is measured on them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from counterlens import metrics
from counterlens.data.columns import column_values, texts
from counterlens.data.sources.slices import SPEC as SLICES
from counterlens.errors import InputError, nearest
from counterlens.images import ImageSet
from counterlens.metrics import groups as measure
from counterlens.metrics.groups import Group, Groups, MemberFlags, Values
from counterlens.runs import LogitSet, Number, Run, parse_gate, stored_logits
from counterlens.workflows._shared.objects import Objects
from counterlens.workflows.audit.gates import GIVEN, group_part, plain_name
from counterlens.workflows.audit.settings import Settings
from counterlens.workflows.audit.slices import check_slices, slices_of

GroupColumns = Mapping[str, Sequence[str | None]]


def group_specs(given: object, objects: Objects) -> tuple[str, ...]:
    """Names of columns, one per text or several with commas; a mapping gives the values itself.

    >>> group_specs(["site,scanner", "class"], Objects())
    ('site', 'scanner', 'class')
    """
    if isinstance(given, Mapping):
        return tuple(_given(str(name), values, objects) for name, values in given.items())
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise InputError(
            f"groups is {type(given).__name__}, expected names of columns, or a mapping from a "
            'name to one value per image: groups={"site": sites}.'
        )
    split = [part.strip() for text in listed for part in text.split(",")]
    names = [name for name in split if name]
    if len(names) < len(split) or len(set(names)) < len(names):
        raise InputError(f"groups names {', '.join(split)}: expected each column once, none empty.")
    return tuple(names)


def _given(name: str, values: object, objects: Objects) -> str:
    """What stands for a column of values in the manifest of a run."""
    if not isinstance(values, Mapping):
        listed = getattr(values, "tolist", None)
        values = listed() if callable(listed) else values
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(
                f"groups: {name} is {type(values).__name__}, expected one value per image, or a "
                "mapping from ids of images to values."
            )
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    digest = hashlib.sha256("\n".join(f"{key}\t{value}" for key, value in pairs).encode())
    spec = f"{name}{GIVEN}{digest.hexdigest()[:16]}"
    objects.columns[spec] = values
    return spec


def check_groups(settings: Settings) -> None:
    """Refuse a half-width that no share can have, and an encoder that finds no slices."""
    check_slices(settings)
    half = settings.group_width
    if not 0 < half < 0.5:
        raise InputError(f"group_width is {half}, expected a share above 0 and below 0.5: 0.15.")


def open_columns(settings: Settings, images: ImageSet, objects: Objects) -> dict[str, Any]:
    """The values of each column, one per image of the set."""
    return {plain_name(spec): _values(spec, settings, images, objects) for spec in settings.groups}


def _values(spec: str, settings: Settings, images: ImageSet, objects: Objects) -> list[str | None]:
    if spec.startswith(SLICES):
        return texts(slices_of(spec, images), spec)
    if GIVEN not in spec:
        return column_values(images, spec, settings.data)
    name, given = plain_name(spec), objects.columns.get(spec)
    if given is None:
        raise InputError(
            f"groups: the values of {name} were in the memory of the program that made the run. "
            "Give them again, with the same values, to resume it."
        )
    if isinstance(given, Mapping):
        missing = [i for i in images.ids if i not in given]
        if len(missing) == len(images):
            raise InputError(
                f"groups: {name} names none of the images of {images.name}: expected ids such as "
                f"{images.ids[0]!r}."
            )
        given = [given.get(i) for i in images.ids]
    if len(given) != len(images):
        limit = f" (limit={settings.limit})" if settings.limit is not None else ""
        raise InputError(
            f"groups: {name} has {len(given)} values and {images.name} {len(images)} images"
            f"{limit}. Give one value per image, or a mapping from ids to values."
        )
    return texts(given, name)


def check_values(settings: Settings, columns: GroupColumns) -> None:
    """Refuse gates on values that a column does not have."""
    for gate in map(parse_gate, settings.require):
        parts = gate.key.split(".")
        if parts[0] != "groups" or len(parts) < 4:
            continue
        for name, values in columns.items():
            known = {group_part(value) for value in values if value is not None}
            value = parts[2].partition("~")[0]
            if parts[1] == group_part(name) and value not in known:
                near = nearest(value, known)
                hint = f"Did you mean {near}?" if near else f"It has: {', '.join(sorted(known))}."
                raise InputError(f"gate {gate.text!r}: {name} has no value {parts[2]!r}. {hint}")


@dataclass(frozen=True)
class _Measure:
    """One number per group: the metric, the groups and how one of them is measured."""

    metric: str
    groups: Groups
    numbers: list[tuple[Group, Number]]


def write_groups(run: Run, columns: GroupColumns, images: ImageSet, half: float) -> None:
    """Measure every group on the logits that the run kept, and write numbers and tables."""
    if not columns:
        return
    logits = stored_logits(run)
    inside = next(one for one in logits.values() if one.role == "in")
    place = {name: i for i, name in enumerate(images.ids)}
    rows = [place[name] for name in inside.ids]
    own = {name: [values[i] for i in rows] for name, values in columns.items()}
    run.write_table(
        "group_values",
        [
            {"image": i, **dict(zip(own, cells, strict=True))}
            for i, cells in zip(inside.ids, zip(*own.values(), strict=True), strict=True)
        ],
    )
    judged = metrics.judge(
        torch.from_numpy(np.array(inside.logits)),
        torch.from_numpy(inside.labels),
        temperature=inside.temperature,
    )
    right, confidence = judged.right.numpy(), judged.confidence.numpy()
    groups = measure.grouped(own, half=half)
    measures = [
        _measured("accuracy", groups, lambda g: measure.accuracy(g, right, groups)),
        _measured(
            "overconfidence", groups, lambda g: measure.overconfidence(g, confidence, right, groups)
        ),
        *_ood(logits, inside, groups, judged.score.numpy()),
        *_robust(run, own, inside, half),
    ]
    gaps = measure.gaps(groups, right)
    run.write_table("groups", _rows(groups, measures, gaps))
    run.write_table("group_metrics", _metric_rows(measures[2:]))
    run.add_numbers(_numbers(groups, measures, gaps))


def _measured(metric: str, groups: Groups, number: Any) -> _Measure:
    return _Measure(metric, groups, [(group, number(group)) for group in groups.every])


def _ood(
    sets: Mapping[str, LogitSet], inside: LogitSet, groups: Groups, score: Values
) -> list[_Measure]:
    """How well each group is distinguished from each unknown set."""
    measures = []
    for name, one in sets.items():
        if one.role != "ood" or one.logits.shape[1] != inside.logits.shape[1]:
            continue
        logits = torch.from_numpy(np.array(one.logits))
        other = metrics.answers(logits, temperature=one.temperature).score.numpy()
        measures.append(_auroc(f"{name}.auroc", groups, score, other))
    return measures


def _auroc(metric: str, groups: Groups, score: Values, other: Values) -> _Measure:
    return _measured(metric, groups, lambda g: measure.auroc(g, score, other, groups))


def _robust(run: Run, own: GroupColumns, inside: LogitSet, half: float) -> list[_Measure]:
    """Robust accuracy by group, on the images that were attacked."""
    place = {name: i for i, name in enumerate(inside.ids)}
    measures = []
    for path in sorted((run.folder / "tables").glob("adversarial-*.npz")):
        key = path.stem.removeprefix("adversarial-")
        whole = run.numbers.get(f"robust.{key}.accuracy")
        if whole is None or whole.bound is not None:
            continue
        with np.load(path) as file:
            ids, robust = file["all_ids"].tolist(), np.asarray(file["robust"], dtype=bool)
        rows = [place[name] for name in ids]
        attacked = {name: [values[i] for i in rows] for name, values in own.items()}
        groups = measure.grouped(attacked, half=half)
        measures.append(_under_attack(key, groups, robust, whole))
    return measures


def _under_attack(key: str, groups: Groups, robust: MemberFlags, whole: Number) -> _Measure:
    def number(group: Group) -> Number:
        plain = measure.accuracy(group, robust, groups)
        text = f"right under {key.replace('_', '/')}: {plain.protocol}"
        return Number(
            plain.value, plain.n, plain.low, plain.high, text, plain.reason,
            whole.trust if plain.value is not None else None,
        )  # fmt: skip

    return _measured(f"{key}.robust", groups, number)


def _numbers(
    groups: Groups, measures: Sequence[_Measure], gaps: Sequence[dict[str, Any]]
) -> dict[str, Number]:
    """Every group of a single column, judged intersections, and the worst of each metric."""
    out: dict[str, Number] = {}
    for one in measures:
        for group, number in one.numbers:
            if len(group.column) == 1 or group.judged:
                out[_free(f"{_key(group)}.{one.metric}", out)] = number
        named = [(group.name, number) for group, number in one.numbers]
        lowest = one.metric != "overconfidence"
        out[f"groups.worst.{one.metric}"] = _with_trust(
            measure.worst(named, one.metric.replace("_", "/"), lowest=lowest), one.numbers
        )
    named = []
    for row in gaps:
        number = _gap_number(row, groups)
        out[_free(f"{_key(row['group'])}.gap", out)] = number
        named.append((row["group"].name, number))
    out["groups.worst.gap"] = measure.worst(named, "accuracy of the group less that of the rest")
    return out


def _with_trust(number: Number, parts: Sequence[tuple[Group, Number]]) -> Number:
    """The verdict of the attack behind a robust accuracy travels with the worst group."""
    trust = next((part.trust for _, part in parts if part.trust), None)
    return Number(
        number.value, number.n, number.low, number.high, number.protocol, number.reason, trust
    )


def _gap_number(row: Mapping[str, Any], groups: Groups) -> Number:
    group: Group = row["group"]
    text = (
        f"accuracy of images with {group.name} less that of {row['rest_n']} others; "
        f"{row['comparisons']} comparisons; Newcombe interval, Bonferroni"
    )
    return Number(row["gap"], group.n, row["low"], row["high"], text)


def _key(group: Group) -> str:
    column, value = ("-".join(map(group_part, part)) for part in (group.column, group.value))
    return f"groups.{column}.{value}"


def _free(key: str, taken: Mapping[str, object]) -> str:
    head, _, metric = key.rpartition(".")
    count = 2
    while key in taken:
        key, count = f"{head}~{count}.{metric}", count + 1
    return key


def _rows(
    groups: Groups, measures: Sequence[_Measure], gaps: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The table `groups`: judged ones first, the worst on top."""
    accuracy, over = (dict(_by_name(one)) for one in measures[:2])
    gap = {row["group"].name: row for row in gaps}
    rows = []
    for group in groups.every:
        right, sure, rest = accuracy[group.name], over[group.name], gap.get(group.name, {})
        rows.append(
            {
                "group": group.name,
                "columns": len(group.column),
                "n": group.n,
                "judged": group.judged,
                "least": groups.least,
                "half": groups.half,
                "accuracy": right.value,
                "low": right.low,
                "high": right.high,
                "rest": rest.get("rest"),
                "gap": rest.get("gap"),
                "gap_low": rest.get("low"),
                "gap_high": rest.get("high"),
                "p_holm": rest.get("p_holm"),
                "comparisons": rest.get("comparisons"),
                "overconfidence": sure.value,
                "overconfidence_low": sure.low,
                "overconfidence_high": sure.high,
            }
        )
    return sorted(rows, key=lambda row: (not row["judged"], row["accuracy"] or 0.0, -row["n"]))


def _by_name(one: _Measure) -> list[tuple[str, Number]]:
    return [(group.name, number) for group, number in one.numbers]


def _metric_rows(measures: Sequence[_Measure]) -> list[dict[str, Any]]:
    """The table `group_metrics`: robust accuracy and AUROC of the judged groups."""
    return [
        {
            "group": group.name,
            "metric": one.metric,
            "n": number.n,
            "value": number.value,
            "low": number.low,
            "high": number.high,
        }
        for one in measures
        for group, number in one.numbers
        if number.value is not None
    ]
