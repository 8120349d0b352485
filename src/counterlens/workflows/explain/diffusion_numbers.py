"""What universal counterfactuals came to: rows, the guides' matrix, numbers, figures.

Everything is measured on the PNG files, read back from disk.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.pixel import confidences
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.cutouts import seen
from counterlens.metrics.closeness import masked_l2
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.runs import Number, key_part
from counterlens.types import Images, Probs
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows._shared.generation.generate import reread
from counterlens.workflows.explain.job import ExplainJob

SURE = 0.8
FAITHFUL = 30.0
FIGURES = 12


def report_cases(
    job: ExplainJob,
    guides: Sequence[Classifier],
    places: Sequence[Sequence[int]],
    cases: Sequence[Sequence[dict[str, Any]]],
) -> dict[str, Number]:
    """Write tables and figures of all cases and guides; return the numbers.

    Args:
        places: for each guide the target of each case in its numbering.
        cases: for each case its states, one for each guide.
    """
    names = unique([guide.name for guide in guides])
    rows = [row for g in range(len(guides)) for row in _rows(job, guides, names, places, cases, g)]
    job.run.write_table("uvce", rows)
    if len(guides) > 1:
        job.run.write_table("guides", matrix(rows, names))
    _figures(job, rows, names)
    return numbers(rows, names)


def unique(names: Sequence[str]) -> list[str]:
    """Names that differ.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (3)']
    """
    return [f"{n} ({i + 1})" if n in names[:i] else n for i, n in enumerate(names)]


def confidences_at(net: Classifier, x: Images) -> Probs:
    """Confidences at images of any size."""
    side = net.preprocess.size[0]
    return torch.cat([confidences(net, seen(part, side)) for part in torch.split(x, 64)])


def _rows(
    job: ExplainJob,
    guides: Sequence[Classifier],
    names: Sequence[str],
    places: Sequence[Sequence[int]],
    cases: Sequence[Sequence[dict[str, Any]]],
    g: int,
) -> list[dict[str, Any]]:
    """One row per case of one guide."""
    states = [case[g] for case in cases]
    x = torch.stack([job.pictures.x[state["picture"]] for state in states])
    z, start = (reread(job.run, [state[key] for state in states]) for key in ("image", "start"))
    outside = 1 - reread(job.run, [state["mask"] for state in states])[:, :1]
    at = torch.arange(len(states))
    opinions: dict[str, dict[str, Any]] = {}
    for judge, name, columns in zip(guides, names, places, strict=True):
        where = torch.tensor(list(columns))
        probs = confidences_at(judge, z)
        opinions[name] = {
            "before": confidences_at(judge, x)[at, where],
            "after": probs[at, where],
            "agrees": probs.argmax(1) == where,
            "answer": [judge.classes[k] for k in probs.argmax(1).tolist()],
        }
    own = opinions[names[g]]
    first = confidences_at(guides[g], start)[at, torch.tensor(list(places[g]))]
    away, away_start = masked_l2(z, x, outside), masked_l2(start, x, outside)
    inside = masked_l2(z, x, 1 - outside)
    return [
        {
            **job.row(state["picture"]),
            "target": job.classifier.classes[state["target"]],
            "kind": state["kind"],
            "guide": names[g],
            "caption": state["source"],
            "goal": state["goal"],
            "before": own["before"][i].item(),
            "prompt_only": first[i].item(),
            "after": own["after"][i].item(),
            "answer": own["answer"][i],
            "reached": bool(own["agrees"][i]),
            "background": away[i].item(),
            "background_prompt_only": away_start[i].item(),
            "inside": inside[i].item(),
            "opinions": [
                {"judge": name, "before": one["before"][i].item(), "after": one["after"][i].item(),
                 "answer": one["answer"][i], "agrees": bool(one["agrees"][i])}
                for name, one in opinions.items() if name != names[g]
            ],
            "round": state.get("round", 0),
            **{k: state[k] for k in ("inject", "blend", "psnr", "mask_share", "image", "start",
                                     "reconstruction", "mask", "attention", "trace")},
            **{k: state[k] for k in ("mask_by", "points") if k in state},
        }
        for i, state in enumerate(states)
    ]  # fmt: skip


def matrix(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Mean confidence in the target of each judge for the images of each guide."""
    table = []
    for guide in names:
        part = [row for row in rows if row["guide"] == guide]
        own = sum(row["after"] for row in part) / len(part)
        line: dict[str, Any] = {"guide": guide, "n": len(part)}
        for judge in names:
            others = [o["after"] for row in part for o in row["opinions"] if o["judge"] == judge]
            line[judge] = own if judge == guide else sum(others) / len(others)
        table.append(line)
    return table


def numbers(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Number]:
    """How often the target was reached, how surely, and what it cost; errors apart."""
    results: dict[str, Number] = {}
    for area, kinds, what in (
        ("uvce", ("class", "attribute"), "counterfactuals"),
        ("uvce_error", ("error",), "mistaken pictures turned to what they show"),
    ):
        for guide in names:
            part = [row for row in rows if row["guide"] == guide and row["kind"] in kinds]
            if part:
                results |= _of_guide(f"{area}.{key_part(guide)}", part, what)
    pictures = {row["id"]: row["psnr"] for row in rows}
    values = np.array(list(pictures.values()))
    how = "reconstruction after null-text inversion against the picture, 8 bit"
    results["inversion.psnr"] = _mean(values, (0, 100), f"mean PSNR in dB; {how}")
    results["inversion.faithful"] = _share(
        values >= FAITHFUL, f"PSNR of {FAITHFUL:g} dB or more; {how}"
    )
    return results


def _of_guide(key: str, rows: Sequence[dict[str, Any]], what: str) -> dict[str, Number]:
    how = f"{what}, as PNG files read from disk, after temperature"
    after = np.array([row["after"] for row in rows])
    away = np.array([row["background"] for row in rows])
    before = np.array([row["background_prompt_only"] for row in rows])
    top = float(max(away.max(), before.max(), 1e-9))
    results = {
        f"{key}.reached": _share([row["reached"] for row in rows], f"target is the answer; {how}"),
        f"{key}.sure": _share(after >= SURE, f"confidence of {SURE:g} or more; {how}"),
        f"{key}.confidence": _mean(after, (0, 1), f"mean confidence in the target; {how}"),
        f"{key}.background": _mean(
            away, (0, top), f"l2 distance to the picture outside the mask; {how}"
        ),
        f"{key}.background_change": _mean(
            away - before, (-top, top),
            f"the same less that of prompt-to-prompt alone, same picture and mask; {how}",
        ),
    }  # fmt: skip
    for judge in dict.fromkeys(o["judge"] for row in rows for o in row["opinions"]):
        votes = [o["agrees"] for row in rows for o in row["opinions"] if o["judge"] == judge]
        results[f"{key}.agreed_{key_part(judge)}"] = _share(
            votes, f"{judge}, which did not guide, answers the target; {how}"
        )
    return results


def _share(flags: Any, protocol: str) -> Number:
    hits, n = int(np.sum(flags)), len(flags)
    return Number(hits / n, n, *wilson(hits, n), protocol)


def _mean(values: np.ndarray, bounds: tuple[float, float], protocol: str) -> Number:
    low, high = mean_interval(values, bounds) if len(values) > 1 else (None, None)
    return Number(float(values.mean()), len(values), low, high, protocol)


def _figures(job: ExplainJob, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """A figure per picture: how it was understood, and what each guide made of it."""
    for i, name in enumerate(list(dict.fromkeys(row["id"] for row in rows))[:FIGURES]):
        part = [row for row in rows if row["id"] == name]
        grid, sides = [], []
        for target in dict.fromkeys(row["target"] for row in part):
            own = [row for row in part if row["target"] == target]
            first = own[0]
            files = [first["original"], first["reconstruction"], first["mask"], first["start"]]
            x = [reread(job.run, [file])[0] for file in files]
            line = [
                Panel(x[0], f"{target} {first['before']:.2f}"),
                Panel(x[1], f"{first['psnr']:.1f} dB"),
                Panel(x[2], f"{first['mask_share']:.0%} of it"),
                Panel(x[3], f"{target} {first['prompt_only']:.2f}"),
            ]
            line += [
                Panel(reread(job.run, [row["image"]])[0],
                      f"{target} {row['after']:.2f}\n{row['answer']}",
                      "good" if row["reached"] else "bad")
                for row in own
            ]  # fmt: skip
            grid.append(line)
            sides.append(f"towards\n{target}")
        heads = ["original", "made again", "mask", "prompt only", *names]
        title = f"{name}: {part[0]['predicted']} {part[0]['confidence']:.2f}"
        save_figure(job.run, f"figure-{i:03d}", grid, heads=heads, sides=sides, title=title)
