"""The attacked part of an audit: robust accuracy, and the worst confidence around strangers.

Paper: Croce and Hein 2020 (autoattack2020); Augustin et al. 2020 (ratio2020), sections 4.1, 4.2.
Differs: the worst-case AUROC raises log-confidence and lead over the second class, 5 restarts
       each, and keeps the worse; an upper bound all the same, and said to be one.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import IO, Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from counterlens import metrics
from counterlens.ball import Ball, check_radius
from counterlens.classifier import Classifier
from counterlens.data.sets import sample_rows
from counterlens.errors import InputError
from counterlens.images import ImageSet, prepare
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.objectives import Predict
from counterlens.progress import doing
from counterlens.runs import Number, Run, atomic, key_part
from counterlens.search import AttackSettings, Flag, Robustness, robust, weigh, worst_confidence
from counterlens.search.ensemble.forecast import in_words
from counterlens.search.ensemble.trust import spread
from counterlens.types import Images
from counterlens.workflows.audit.protocol import Inside, Protocol, judged_model
from counterlens.workflows.audit.robust_classes import write_classes
from counterlens.workflows.audit.settings import Settings

NORMS = {"l1": "l1", "l2": "l2", "linf": "linf", "l∞": "linf"}
STEPS, RESTARTS, QUERIES = 100, 5, 1000
_CLEAR = "\r\033[K"  # start of the line, and nothing on it
_FIRST, _LONG = 3.0, 30.0  # seconds until a duration is told, and those worth telling
_PROBED = 32  # points on which a twice as long search asks whether the worst case was met


def parse_attack(text: str, numbers: float = float("inf")) -> Ball:
    """`l2:0.5` or `linf:8/255` as a ball that holds a part of the images of so many numbers.

    >>> parse_attack("linf:8/255").radius == 8 / 255
    True
    """
    norm, _, size = text.partition(":")
    try:
        radius = float(Fraction(size.strip()))
    except (ValueError, ZeroDivisionError):
        radius = -1.0
    if norm.strip() not in NORMS or radius <= 0:
        raise InputError(
            f"attack {text!r} is not NORM:RADIUS with a radius above 0, "
            "for example l2:0.5, linf:8/255 or l1:12."
        )
    ball = Ball(NORMS[norm.strip()], radius)  # type: ignore[arg-type]
    check_radius(text, ball.norm, radius, numbers)
    return ball


def split_attacks(texts: Sequence[str]) -> tuple[str, ...]:
    """`l2:0.25,0.5,1` as one attack per radius, the smaller ones of a norm first.

    >>> split_attacks(["l2:1,0.5", "linf:8/255"])
    ('l2:0.5', 'l2:1', 'linf:8/255')
    """
    found: list[str] = []
    for text in texts:
        norm, colon, radii = text.partition(":")
        parts = [f"{norm.strip()}{colon}{radius.strip()}" for radius in radii.split(",")]
        found += parts if colon else [text]
    order = list(dict.fromkeys(text.partition(":")[0] for text in found))
    return tuple(
        sorted(
            dict.fromkeys(found),
            key=lambda text: (
                order.index(text.partition(":")[0]),
                float(parse_attack(text).radius),
            ),
        )
    )


def seconds(budget: str | None) -> float | None:
    """`90`, `90s`, `10m` or `1.5h` in seconds.

    >>> seconds("10m")
    600.0
    """
    if budget is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", budget)
    if not found:
        raise InputError(f"budget is {budget!r}, expected a time such as 90s, 10m or 1h.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def pixels(images: ImageSet, rows: Int64[np.ndarray, "n"], classifier: Classifier) -> Images:
    """These pictures as the classifier sees them, in [0, 1]."""
    made = [
        prepare(images.read(int(i)), classifier.preprocess, channels=classifier.channels)
        for i in rows
    ]
    return torch.from_numpy(np.stack(made)).float() / 255


def robustness(
    run: Run,
    classifier: Classifier,
    images: ImageSet,
    protocol: Protocol,
    rows: Int64[np.ndarray, "n"],
    attack: str,
    asked: Settings,
    surrogates: Sequence[Predict] = (),
    earlier: Robustness | None = None,
    *,
    quiet: bool = False,
) -> Robustness:
    """Attack some images, add the robust accuracy with its verdict and the curve over radius.

    Args:
        rows: the images whose accuracy is reported; `attack_points` of them are attacked.
        surrogates: models of the protocol's classes whose adversarial images are tried, too.
        earlier: what the same attack left in a smaller ball of the same norm.
    """
    ball, key = parse_attack(attack), key_part(attack)
    all_of = len(rows)
    some, which = attacked_rows(protocol.labels[rows], asked)
    rows = rows[some]
    doing(f"attack-{key}: first search on {len(rows)} images")
    found = robust(
        judged_model(classifier, protocol),
        pixels(images, rows, classifier),
        torch.from_numpy(protocol.labels[rows]),
        ball,
        version=asked.attack_version,  # type: ignore[arg-type]
        settings=search_settings(run, f"attack-{key}", asked, quiet),
        surrogates=surrogates,
        earlier=earlier,
    )
    _hush()
    run.add_numbers({f"robust.{key}.accuracy": _number(found, attack, f"{which} {all_of}")})
    write_trust(run, attack, found.trust.to_json())
    curve = [r for r in run.table("robust_curve") if r["attack"] != attack]
    run.write_table("robust_curve", [*curve, *_curve(found, ball, attack)])
    stages = [r for r in run.table("attack_stages") if r["attack"] != attack]
    run.write_table("attack_stages", [*stages, *({"attack": attack, **s} for s in found.stages)])
    _keep_points(run, key, found, [images.ids[int(i)] for i in rows])
    answers = model_logits(judged_model(classifier, protocol), found.points, classifier).argmax(1)
    write_classes(run, attack, found, protocol.labels[rows], answers.numpy(), protocol.classes)
    return found


def write_trust(run: Run, attack: str, trust: Mapping[str, Any]) -> None:
    """The signs behind a verdict, in place of those of an earlier try."""
    kept = [row for row in run.table("trust") if row["attack"] != attack]
    flags = [
        {"attack": attack, "flag": f["name"], "status": f["status"], "detail": f["detail"]}
        for f in trust["flags"]
    ]
    run.write_table("trust", [*kept, *flags])


def attacked_rows(
    labels: Int64[np.ndarray, "n"], asked: Settings, most: int | None = None
) -> tuple[Int64[np.ndarray, "m"], str]:
    """Which images are attacked, and how to say so before their number.

    The first ones, as the field does, unless the set is sorted by class, as folders are (in any
    order of classes): then the first would be of a few, and as many are drawn by the seed.
    """
    count = min(asked.attack_points, most or asked.attack_points)
    if len(labels) <= count:
        return np.arange(len(labels)), "all"
    if np.count_nonzero(np.diff(labels)) < len(np.unique(labels)):  # each class in one run
        drawn = sample_rows(len(labels), count, asked.seed)
        return drawn, f"{count} drawn by seed {asked.seed} of the"
    return np.arange(count), f"the first {count} of the"


def search_settings(run: Run, name: str, asked: Settings, quiet: bool) -> AttackSettings:
    """How the searches of an audit run: seed, batch, budget, and state to resume from."""
    return AttackSettings(
        seed=asked.seed,
        batch=asked.batch or "auto",
        budget=seconds(asked.budget),
        state=run.path("state", name),
        progress=None if quiet else _say(name),
    )


def _say(name: str) -> Callable[[Mapping[str, Any]], None]:
    """Progress of an attack: one line that is written over, or a line a minute in a log."""
    screen, told = sys.stderr.isatty(), False
    last = 0.0 if screen else time.monotonic()  # a short attack leaves nothing in a log

    def say(facts: Mapping[str, Any]) -> None:
        nonlocal last, told
        left = None if facts["left"] is None else facts["left"][1]
        doing(f"{name}: {facts['stage']}, images", facts["done"], facts["of"], left=left)
        if not told and facts["device"] == "cpu" and facts["left"] and facts["elapsed"] >= _FIRST:
            told = True
            if facts["left"][1] >= _LONG:
                print(
                    f"{_CLEAR if screen else ''}{_duration(name, facts['left'])}", file=sys.stderr
                )
        if time.monotonic() - last < (1 if screen else 60):
            return
        last = time.monotonic()
        text = (
            f"{name}: {facts['stage']} {facts['done']} of {facts['of']}, "
            f"{facts['robust']} of {facts['points']} still right"
        )
        sys.stderr.write(f"{_CLEAR}{text}" if screen else f"{text}\n")
        sys.stderr.flush()

    return say


def _duration(name: str, left: tuple[float, float]) -> str:
    """How long an attack will take on this CPU, and what would be quicker."""
    return (
        f"{name}: about {in_words(left)} more on this CPU. Quicker: --attack-version fast, fewer "
        "--attack-points, or --budget 10m for bounds; on a GPU: --device cuda."
    )


def _hush() -> None:
    """Wipe the progress line of a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(_CLEAR)


def _number(found: Robustness, attack: str, which: str) -> Number:
    n = len(found.robust)
    clean = f"{which} reported images, {found.correct.double().mean():.4f} right before the attack"
    notes = "".join(f"; {note}" for note in found.notes)
    work = f"{found.counts['forwards']} forward, {found.counts['backwards']} backward"
    text = f"{found.protocol} ({attack}); {clean}; {work} passes{notes}"
    low, high = (round(bound * n) for bound in found.bounds)
    ends = (wilson(low, n)[0], wilson(high, n)[1])
    trust = found.trust.to_json()
    if found.complete:
        return Number(high / n, n, *ends, f"{text}; Wilson interval", trust=trust)
    text += f"; stopped early: between {low / n:.4f} and {high / n:.4f} of these points hold"
    text += "; Wilson bounds of both"
    return Number(high / n, n, *ends, text, _ended(found.settled, n), trust, "upper")


def _ended(settled: int, n: int) -> str:
    return f"budget ended, {settled} of {n} settled"


def _curve(found: Robustness, ball: Ball, attack: str) -> list[dict[str, object]]:
    """Robust accuracy over radius: attacked at the radius, bounded from above elsewhere."""
    n, rows = len(found.robust), []
    radius = float(ball.radius)
    for share in np.linspace(0, 1, 21):
        at = share * radius
        if share == 1:
            hits = int(found.robust.sum())
        else:
            hits = int((found.correct & (found.distances > at)).sum())
        low, high = wilson(hits, n)
        attacked = share == 0 or (share == 1 and found.complete)
        kind = "attacked" if attacked else "upper bound"
        rows.append(
            {
                "attack": attack,
                "norm": ball.norm,
                "radius": at,
                "accuracy": hits / n,
                "low": low,
                "high": high,
                "n": n,
                "kind": kind,
            }
        )
    return rows


def _keep_points(run: Run, key: str, found: Robustness, ids: list[str]) -> None:
    """Keep the adversarial pictures for reuse, compressed."""
    broken = torch.nonzero(found.correct & ~found.robust).flatten()
    with _table_file(run, f"adversarial-{key}.npz") as file:
        np.savez_compressed(
            file,
            points=found.points[broken].cpu().numpy().astype(np.float32),
            ids=np.array([ids[i] for i in broken.tolist()]),
            robust=found.robust.cpu().numpy(),
            all_ids=np.array(ids),
        )


@contextmanager
def _table_file(run: Run, name: str) -> Iterator[IO[bytes]]:
    """A file beside the tables, whole or not there."""
    with atomic(run.path("tables", name)) as part, part.open("wb") as file:
        yield file


def worst_ood(
    run: Run,
    classifier: Classifier,
    other: ImageSet,
    inside: Inside,
    ball_text: str,
    asked: Settings,
    *,
    quiet: bool = False,
) -> None:
    """Raise the confidence around unknown images and ask again whether they are told apart."""
    ball = parse_attack(ball_text)
    rows, which = attacked_rows(other.labels, asked)
    x = pixels(other, rows, classifier)
    protocol, in_logits, temperature = inside.protocol, inside.logits, inside.temperature
    model = judged_model(classifier, protocol)
    settings = search_settings(run, f"worst-{key_part(other.name)}", asked, quiet)
    result = worst_confidence(
        model, x, ball, steps=STEPS, restarts=RESTARTS, queries=QUERIES, settings=settings
    )
    _hush()
    logits = model_logits(model, result.points, classifier)
    flags = list(result.trust.flags)
    if result.complete:
        some = torch.from_numpy(spread(np.arange(len(x)), _PROBED))
        longer = worst_confidence(
            model,
            x[some],
            ball,
            steps=2 * STEPS,
            restarts=RESTARTS,
            queries=0,
            settings=replace(settings, state=None, seed=asked.seed + 1, progress=None, trust=False),
        )
        better = model_logits(model, longer.points, classifier)
        known, one, two = (
            metrics.answers(part, temperature=temperature).score
            for part in (in_logits, logits[some], better)
        )
        move = metrics.auroc(known, one) - metrics.auroc(known, torch.maximum(one, two))
        flags.append(_more_steps(move, len(some), longer.complete))
    trust = weigh(flags).to_json()
    text = (
        f"{protocol.text}; {which} {len(other)} unknown; worst case within {ball_text}, "
        f"APGD {STEPS} × {RESTARTS} at temperature 1, then Square of {QUERIES} queries, upper "
        "bound; scored after temperature"
    )
    numbers = metrics.ood_numbers(
        in_logits,
        logits,
        name=other.name,
        temperature=temperature,
        protocol=text,
        seed=asked.seed,
    )
    part = f"ood.{key_part(other.name)}"
    auroc, mmc = (replace(numbers[f"{part}.{metric}"], trust=trust) for metric in ("auroc", "mmc"))
    if not result.complete:
        why = _ended(result.settled, len(x))
        auroc = replace(auroc, low=0.0, bound="upper", reason=why)
        mmc = replace(mmc, high=1.0, bound="lower", reason=why)
    run.add_numbers({f"{part}.worst_auroc": auroc, f"{part}.worst_mmc": mmc})
    write_trust(run, f"worst-case OOD {other.name}", trust)
    with _table_file(run, f"worst-{key_part(other.name)}.npz") as file:
        np.savez_compressed(
            file, logits=logits.numpy(), ids=np.array([other.ids[int(i)] for i in rows])
        )


def model_logits(
    model: Callable[[Images], Tensor], points: Images, classifier: Classifier, batch: int = 256
) -> Tensor:
    """What the model says about these images, on the CPU."""
    device = classifier.mean.device
    with torch.inference_mode():
        return torch.cat(
            [model(part.to(device)).float().cpu() for part in torch.split(points, batch)]
        )


def _more_steps(move: float, points: int, complete: bool) -> Flag:
    """Whether twice the steps move the AUROC of the probed points."""
    if not complete:
        detail = "the budget ended before the probe of twice the steps did"
        return Flag("more-steps", "weak", move, detail)
    detail = f"twice the steps and other restarts lower the AUROC of {points} points by {move:.4f}"
    return Flag("more-steps", "ok" if move <= 0.005 else "weak", move, detail)
