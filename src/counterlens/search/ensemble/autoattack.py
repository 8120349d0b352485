"""Worst case: the accuracy that the AutoAttack ensemble leaves.

Paper: Croce and Hein 2020 (autoattack2020).
Differs: a point counts as broken only by an image that the model itself, in float32, gets
       wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from counterlens.ball import Ball
from counterlens.checks import check_images, check_labels
from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.objectives import Predict
from counterlens.search.ensemble.driver import drive
from counterlens.search.ensemble.protocols import (
    EOT,
    Version,
    lacking,
    stages_of,
    transfer,
    without_gradients,
)
from counterlens.search.ensemble.stage import AttackMonitor, SearchStage
from counterlens.search.ensemble.state import CLEAN, AttackState, initial_state
from counterlens.search.ensemble.store import AttackStore, fingerprint
from counterlens.search.ensemble.trust import Trust, examine
from counterlens.search.fast.engine import (
    Engine,
    SearchPrecision,
    auto_batch,
    home,
    open_engine,
    probe,
    warm_up,
)
from counterlens.search.fast.prebuild import KernelVariant
from counterlens.search.square import Square
from counterlens.search.square import orders as square_kernels
from counterlens.types import Flags, Images, Labels, Scores

SMALLER = "smaller ball"  # named as the breaker of points that an earlier result broke
ProgressCallback = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class AttackSettings:
    """How an attack is run; none of it but `seed` changes what is searched for.

    Args:
        seed: everything random follows from it and the position of a point.
        batch: items per evaluation; "auto" fits the device's memory.
        precision: of the search; None means bf16 on a GPU, float32 elsewhere. Whatever the
            search claims is verified in float32.
        compiled: compile the fast copy of the model with torch.compile.
        budget: seconds after which to stop with bounds; None runs to the end.
        state: folder with the state of the attack; an interrupted one resumes from there.
        save_every: seconds between two saves.
        trust: run the probes that judge the result. They always run, and after a budget has ended
            there are fewer: about 1,000 evaluations on top of it.
    """

    seed: int = 0
    batch: int | Literal["auto"] = "auto"
    precision: SearchPrecision | None = None
    compiled: bool = False
    budget: float | None = None
    state: Path | None = None
    save_every: float = 30.0
    trust: bool = True
    progress: ProgressCallback | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Robustness:
    """The result of an ensemble of attacks.

    Args:
        robust: points classified right at every image the attacks evaluated.
        correct: points classified right without attack.
        points: for a broken point the misclassified image, else the clean one.
        distances: smallest distance of a misclassified image; ∞ if none,
            0 for points that are wrong without attack. May exceed the radius.
        broken_by: the stage that broke each point; "clean", or "" where it held.
        stages: one record per finished stage.
        counts: images sent forward, backward and through verification.
        complete: False if the budget ended first; then `bounds` is all that is known.
        settled: points no attack has anything left to do for.
        bounds: robust accuracy lies between these.
        trust: whether the number may be quoted, and why not.
        protocol: how it was measured, in one line.
        compiling: seconds spent on compiling the fast copy.
        notes: what was replaced or skipped.
    """

    robust: Flags
    correct: Flags
    points: Images
    distances: Scores
    broken_by: tuple[str, ...]
    stages: tuple[dict[str, Any], ...]
    counts: dict[str, int]
    complete: bool
    settled: int
    bounds: tuple[float, float]
    trust: Trust
    protocol: str
    compiling: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of all points that are classified right after the attacks."""
        return self.robust.double().mean().item()


def robust(
    classifier: Predict,
    x: Images,
    y: Labels,
    ball: Ball,
    *,
    version: Version | Sequence[SearchStage] = "standard",
    settings: AttackSettings = AttackSettings(),  # noqa: B008  frozen
    surrogates: Sequence[Predict] = (),
    earlier: "Robustness | None" = None,
) -> Robustness:
    """Attack every point with the ensemble; the share that stays right is the robust accuracy.

    Equation: autoattack2020 §5   robust = ∩ over attacks of {classified right after it}

    A model without gradients is attacked by Square alone, and by transfer where there are
    surrogates; its verdict is "do not quote".

    Args:
        version: a named protocol, or the stages of one's own.
        surrogates: other models on the same classes and images; adversarial images of theirs
            are tried on this one after all other attacks, on the points not yet broken.
        earlier: the result of an attack on the same points in a smaller ball of the same norm: its
            misclassified images count here, and only the other points are attacked.
    """
    classes = check_input(classifier, x, y, ball)
    name, stages, notes = _plan(version, classes, ball)
    repeats = EOT if version == "rand" else 1
    with (
        open_batched_engine(classifier, x, settings, repeats, kernels(stages, x, ball)) as (
            engine,
            batch,
        ),
        _surrogates(surrogates, x, classes, settings, engine) as transfers,
    ):
        if not engine.differentiable:
            stages = without_gradients(stages, ball.norm)
            notes.append("the model has no gradients")
        stages = [*stages, *transfers]
        if not stages:
            raise InputError(
                f"the model has no gradients, and no attack without gradients knows {ball.norm}. "
                "Attack in l1, l2 or linf, or give surrogates."
            )
        about = _about(stages, surrogates, earlier)
        attack, monitor = prepare(classifier, engine, x, y, ball, settings, batch, about)
        if earlier is not None:
            _take_over(attack, earlier)
        complete = drive(engine, stages, attack, monitor, batch=batch)
        trust = examine(
            engine,
            attack,
            lacking=lacking(stages, classes, ball.norm),
            complete=complete,
            probes=settings.trust,
        )
        notes += engine.notes
    ensemble = _named(name, engine, transfers)
    protocol = f"{ensemble}, {ball.norm} {ball.radius:.4g}, seed {settings.seed}"
    return _summary(attack, engine, complete, trust, protocol, notes)


def _plan(
    version: Version | Sequence[SearchStage], classes: int, ball: Ball
) -> tuple[str, list[SearchStage], list[str]]:
    """Name, stages and notes of a named protocol, or of stages of one's own."""
    if isinstance(version, str):
        return version, *stages_of(version, classes, ball.norm)
    return "+".join(stage.name for stage in version), list(version), []


def _named(version: str, engine: Engine, transfers: Sequence[SearchStage]) -> str:
    """The ensemble as protocols call it."""
    name = f"AutoAttack {version}"
    if version == "fast":
        name = "APGD-CE and APGD-T with 3 targets"
    if not engine.differentiable:
        name = "Square alone"
    return name + (f" and {', '.join(stage.name for stage in transfers)}" if transfers else "")


def _about(
    stages: Sequence[SearchStage], surrogates: Sequence[Predict], earlier: "Robustness | None"
) -> dict[str, Any]:
    """What a stored state must agree with, besides images and settings, to be continued."""
    about: dict[str, Any] = {"plan": [(s.name, repr(s.rule), s.variants) for s in stages]}
    if surrogates:
        about["surrogates"] = [fingerprint({}, model=one) for one in surrogates]
    if earlier is not None:
        about["earlier"] = _mark(earlier)
    return about


def _take_over(attack: AttackState, earlier: Robustness) -> None:
    """Points broken in a smaller ball are broken in this one."""
    if len(earlier.robust) != len(attack):
        raise InputError(
            f"the earlier result has {len(earlier.robust)} points, expected the same {len(attack)}."
        )
    broken = (earlier.correct & ~earlier.robust).numpy() & attack.robust
    for row in np.flatnonzero(broken):
        attack.robust[row] = False
        attack.broken_by[row] = SMALLER
        attack.nearest[row] = float(earlier.distances[row])
        attack.record_point(int(row), earlier.points[row])
    attack.nearest[:] = np.minimum(attack.nearest, earlier.distances.double().numpy())


def _mark(earlier: Robustness) -> str:
    """Which points an earlier result broke, for the fingerprint of a resumed attack."""
    return "".join("1" if held else "0" for held in earlier.robust.tolist())


@contextmanager
def _surrogates(
    surrogates: Sequence[Predict], x: Images, classes: int, settings: AttackSettings, engine: Engine
) -> Iterator[list[SearchStage]]:
    """A stage for each surrogate."""
    with ExitStack() as stack:
        stages = []
        for number, one in enumerate(surrogates, 1):
            name = str(getattr(one, "name", number))
            if home(one, x) != home(engine.model, x):
                raise InputError(f"surrogate {name} lives on another device than the model.")
            count = probe(one, x[:1].to(engine.device))
            if count != classes:
                raise InputError(f"surrogate {name} has {count} classes, the model {classes}.")
            surrogate = stack.enter_context(open_engine(one, x, precision=settings.precision))
            if not surrogate.differentiable:
                raise InputError(
                    f"surrogate {name} has no gradients, expected a model that can be "
                    "attacked with them."
                )
            stages.append(transfer(surrogate, name))
        yield stages


def check_input(classifier: Predict, x: Images, y: Labels | None, ball: Ball) -> int:
    """Check the input before any work; return the number of classes."""
    check_images(x)
    if isinstance(ball.radius, torch.Tensor):
        raise InputError("the radius is one per row, expected one number for all points.")
    if isinstance(classifier, Classifier):
        size = classifier.preprocess.size
        if tuple(x.shape[2:]) != size or x.shape[1] != classifier.channels:
            raise InputError(
                f"images are {tuple(x.shape[1:])}, {classifier.name} takes "
                f"({classifier.channels}, {size[0]}, {size[1]}). Prepare them with its preprocess."
            )
        classes = len(classifier.classes)
    else:
        classes = probe(classifier, x[:1].to(home(classifier, x)))
    if y is not None:
        check_labels(y, classes=classes, rows=len(x))
    return classes


def kernels(stages: Sequence[SearchStage], x: Images, ball: Ball) -> dict[str, list[KernelVariant]]:
    """The kernels that the stages need beside the model."""
    rules = [stage.rule for stage in stages if isinstance(stage.rule, Square)]
    return square_kernels(x.shape, ball.norm, rules[0].share) if rules else {}


@contextmanager
def open_batched_engine(
    classifier: Predict,
    x: Images,
    settings: AttackSettings,
    repeats: int,
    later: dict[str, list[KernelVariant]] | None = None,
) -> Iterator[tuple[Engine, int]]:
    """An engine and the batch size to use it with."""
    size = settings.batch if isinstance(settings.batch, int) else 0
    if size < 0 or (size == 0 and settings.batch != "auto"):
        raise InputError(f"batch is {settings.batch}, expected a number above 0 or auto.")
    with open_engine(
        classifier,
        x,
        precision=settings.precision,
        compiled=settings.compiled,
        repeats=repeats,
        later=later,
    ) as engine:
        batch = size or auto_batch(engine, x)
        if settings.compiled:
            warm_up(engine, x, batch)
        yield engine, batch


def prepare(
    classifier: Predict,
    engine: Engine,
    x: Images,
    y: Labels | None,
    ball: Ball,
    settings: AttackSettings,
    batch: int,
    about: dict[str, Any],
) -> tuple[AttackState, AttackMonitor]:
    attack = initial_state(engine, x, y, ball, seed=settings.seed, batch=batch)
    store = None
    if settings.state is not None:
        about |= {"norm": ball.norm, "radius": float(ball.radius), "seed": settings.seed}
        about |= {"batch": batch, "precision": engine.precision, "compiled": settings.compiled}
        mark = fingerprint(about, attack.x, attack.y, model=classifier)
        store = AttackStore(settings.state, mark, settings.save_every)
    return attack, AttackMonitor(settings.budget, store, settings.progress)


def _summary(
    attack: AttackState,
    engine: Engine,
    complete: bool,
    trust: Trust,
    protocol: str,
    notes: list[str],
) -> Robustness:
    holds = attack.robust
    low = float((holds & attack.finished).mean())
    return Robustness(
        robust=torch.from_numpy(holds.copy()),
        correct=torch.tensor([name != CLEAN for name in attack.broken_by]),
        points=attack.points,
        distances=torch.from_numpy(attack.nearest).float(),
        broken_by=tuple(attack.broken_by),
        stages=tuple(attack.tallies),
        counts=engine.counts.as_dict(),
        complete=complete,
        settled=int(attack.finished.sum()),
        bounds=(low, float(holds.mean())),
        trust=trust,
        protocol=protocol,
        compiling=engine.compiling,
        notes=tuple(notes),
    )
