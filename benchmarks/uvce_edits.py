"""Counterfactuals of uvce_study.py: made, measured, beside those of pixels, and drawn."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.explanations.counterfactuals.memory import plan_edits as plan
from counterlens.explanations.counterfactuals.pixel import counterfactuals, temperature_of
from counterlens.explanations.counterfactuals.uvce import (
    Change,
    Edit,
    EditSettings,
    class_term,
    uvce,
)
from counterlens.explanations.figure import Panel, grid
from counterlens.generators.diffusion.memory import describe, less
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.generators.diffusion.words import replaced
from counterlens.metrics.closeness import masked_l2
from counterlens.runs import key_part
from counterlens.search import frozen
from uvce_shared import Study, decibels, eight_bits, mean, paired, share

SURE, RADIUS, SHEET = 0.8, 1.5, 20


@dataclass(frozen=True)
class Made:
    """What came of some pictures."""

    images: torch.Tensor
    start_images: torch.Tensor
    reconstruction: torch.Tensor
    masks: torch.Tensor
    schedule: tuple[tuple[float, float], ...]
    rounds: tuple[int, ...]


def edited(
    study: Study,
    net: Classifier,
    rows: Sequence[int],
    targets: Sequence[int],
    settings: EditSettings,
) -> tuple[Made, float]:
    """Counterfactuals of some pictures, all at once where memory allows, and their seconds."""
    study.prepared(rows)
    began = time.monotonic()
    stored, size = plan(study.model, settings, len(rows), study.memory(), [net])
    study.say(f"{size} of {len(rows)} at a time, {describe(stored, settings.chain.steps)}")
    parts: list[Edit] = []
    at = 0
    while at < len(rows):
        part = slice(at, at + size)
        try:
            parts.append(_edited(study, net, rows[part], targets[part], settings, stored))
        except torch.OutOfMemoryError:
            smaller = less(stored, size)
            if smaller is None:
                raise
            torch.cuda.empty_cache()
            stored, size = smaller
            study.say(f"out of memory: {size} at a time")
            continue
        at += size
    names = ("images", "start_images", "reconstruction", "masks")
    joint = [torch.cat([getattr(one, name).cpu() for one in parts]) for name in names]
    made = Made(
        *joint, tuple(s for one in parts for s in one.schedule),
        tuple(r for one in parts for r in one.rounds),
    )  # fmt: skip
    return made, time.monotonic() - began


def _edited(
    study: Study,
    net: Classifier,
    rows: Sequence[int],
    targets: Sequence[int],
    settings: EditSettings,
    stored: StoredSteps,
) -> Edit:
    ready = study.prepared(rows)
    labels = [int(study.labels[i]) for i in rows]
    pairs = [(study.words[a], study.words[b]) for a, b in zip(labels, targets, strict=True)]
    source = [study.prompts[i] for i in rows]
    changes = [Change(replaced(s, pair), pair) for s, pair in zip(source, pairs, strict=True)]
    term = class_term(net, study.places(net)[torch.tensor(list(targets))])

    def told(k: int, look: Any) -> None:
        if k % 5 == 0:
            study.say(f"  update {k}: mean score {look.judged.mean().item():.3f}")

    with frozen(net):
        return uvce(
            study.model, ready, [term], changes, settings=settings,
            seeds=torch.tensor(list(rows), device=study.device) + 1000,
            callback=told, stored=stored,
        )  # fmt: skip


def measured(
    study: Study, spec: str, rows: Sequence[int], targets: Sequence[int], found: Made
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """All figures of one guide's edits, and the flags they come from."""
    net, x = study.net(spec), study.x[list(rows)]
    z, start = eight_bits(found.images), eight_bits(found.start_images)
    outside = 1 - found.masks
    want, at = torch.tensor(list(targets)), torch.arange(len(rows))
    probs, answer = study.answers(net, z)
    first, first_answer = study.answers(net, start)
    away, away_start = masked_l2(z, x, outside), masked_l2(start, x, outside)
    flags = {"reached": answer == want, "z": z, "start": start}
    result: dict[str, Any] = {
        "reached": share(answer == want), "sure": share(probs[at, want] >= SURE),
        "confidence": mean(probs[at, want], (0, 1)),
        "prompt_only": {"reached": share(first_answer == want),
                        "sure": share(first[at, want] >= SURE)},
        "background": mean(away), "background_prompt_only": mean(away_start),
        "background_change": mean(away - away_start),
        "background_better": share(away < away_start),
        "inside": mean(masked_l2(z, x, 1 - outside)),
        "mask_share": mean(found.masks.flatten(1).mean(1).cpu(), (0, 1)),
        "schedules": {str(s): found.schedule.count(s) for s in dict.fromkeys(found.schedule)},
        "rounds": {str(r): found.rounds.count(r) for r in sorted(set(found.rounds))},
        "temperature": temperature_of(net), "confidences": probs[at, want].tolist(),
    }  # fmt: skip
    votes = []
    for judge in (j for j in study.given.judge if j != spec):
        agrees = study.answers(study.net(judge), z)[1] == want
        votes.append(agrees)
        flags[f"judge {judge}"] = agrees
        result[f"judge {judge}"] = share(agrees)
        result[f"judge {judge}, prompt only"] = share(
            study.answers(study.net(judge), start)[1] == want
        )
    if votes:
        result["most judges"] = share(torch.stack(votes).float().mean(0) > 0.5)
    return result, flags


def pixels(
    study: Study, spec: str, rows: Sequence[int], targets: Sequence[int],
    flags: dict[str, torch.Tensor],
) -> tuple[dict[str, Any], torch.Tensor]:  # fmt: skip
    """The same classifier's pixel counterfactuals, judged by the same judges."""
    net = study.net(spec)
    places = study.places(net)
    wanted = [[int(places[t])] for t in targets]
    began = time.monotonic()
    found = counterfactuals(
        net, study.x[list(rows)], wanted, norm="l2", radii=[RADIUS], steps=study.given.steps,
        batch=len(rows) if study.device.type == "cuda" else None,
    )  # fmt: skip
    want = torch.tensor(list(targets))
    result: dict[str, Any] = {
        "reached": share(found.reached), "sure": share(found.after >= SURE),
        "seconds": time.monotonic() - began,
    }  # fmt: skip
    for judge in (j for j in study.given.judge if j != spec):
        agrees = study.answers(study.net(judge), found.points)[1] == want
        result[f"judge {judge}"] = share(agrees)
        result[f"judge {judge}, diffusion less pixels"] = paired(flags[f"judge {judge}"], agrees)
    return result, found.points


def sheet(
    study: Study, spec: str, rows: Sequence[int], targets: Sequence[int], found: Made,
    points: torch.Tensor | None, *, kind: str = "first",
) -> None:  # fmt: skip
    """Contact sheets: the first ones, and all that did not reach the target."""
    net, want = study.net(spec), torch.tensor(list(targets))
    z = eight_bits(found.images)
    probs, answer = study.answers(net, z)
    start, _ = study.answers(net, eight_bits(found.start_images))
    name = key_part(f"{net.name}-{spec.rsplit(chr(47), 2)[-2]}" if "/" in spec else net.name)
    failed = torch.nonzero(answer != want).flatten().tolist()
    for which, chosen in ((kind, list(range(len(rows)))), (f"{kind}-failed", failed)):
        lines, sides = [], []
        for k in chosen[:SHEET]:
            t, i = int(want[k]), rows[k]
            here = eight_bits(found.reconstruction[k])
            line = [
                Panel(study.x[i], study.classes[study.labels[i]]),
                Panel(here, f"{decibels(here[None], study.x[i : i + 1])[0]:.1f} dB"),
                Panel(found.masks[k].cpu().expand(3, -1, -1), f"{found.masks[k].mean():.0%}"),
                Panel(eight_bits(found.start_images[k]), f"{start[k, t]:.2f}"),
                Panel(z[k], f"{probs[k, t]:.2f}", "good" if answer[k] == t else "bad"),
            ]
            if points is not None:
                line.append(
                    Panel(points[k], f"{study.answers(net, points[k : k + 1])[0][0, t]:.2f}")
                )
            lines.append(line)
            sides.append(f"to\n{study.classes[t]}")
        if lines:
            heads = ["original", "made again", "mask", "prompt only", "diffusion", "pixels"]
            data = grid(lines, heads=heads[: len(lines[0])], sides=sides, title=f"{spec}, {which}",
                        cell=0.8)  # fmt: skip
            (study.out / f"{name}-{which}.png").write_bytes(data)
