"""The driver: full batches, early exits, budget and resume, the same for every search.

Work comes as items, one per (point, variant); a variant is a target class or a restart. Items
of any age share a batch. Every few evaluations the finished items, and all items of points that
were broken, leave and the next ones take their place, so the batch stays full across the data
set; what remains to be done is a function of the saved state alone, so a resumed attack is the
same attack.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterlens.ball import mix
from counterlens.search.ensemble.forecast import seconds_left, work_done, work_left
from counterlens.search.ensemble.state import Board
from counterlens.search.ensemble.store import Store
from counterlens.search.fast.cuda_graph import Replay
from counterlens.search.fast.engine import Counts, Engine, Score
from counterlens.search.rule import Rule, State, Told, finite, tall
from counterlens.types import Images

LOOKS = 10, 100  # evaluations between two looks at the results: at least, and as a share


@dataclass(frozen=True)
class Stage:
    """One search over the whole data set.

    Args:
        name: as it appears in results.
        rule: how points move.
        score: what is raised; None asks for the nearest linearised boundary (untargeted FAB).
        variants: restarts, or target classes if `targeted`.
        slope: whether the rule needs gradients.
        judge: if given, points are not broken; each keeps the image this score likes best.
        surrogate: another model, which is searched in place of the attacked one; the attacked
            model is shown every point that fools it more than the last.
    """

    name: str
    rule: Rule
    score: Score | None
    variants: int = 1
    targeted: bool = False
    slope: bool = True
    judge: Score | None = None
    surrogate: Engine | None = None


@dataclass
class Watch:
    """Who looks on: a clock with a budget, a store, a progress callback."""

    budget: float | None = None
    store: Store | None = None
    progress: Callable[[dict[str, Any]], None] | None = None
    clock: Callable[[], float] = time.monotonic
    began: float = field(default=0.0, init=False)
    saved: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.began = self.saved = self.clock()

    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.budget is not None and self.clock() - self.began >= self.budget

    def due(self) -> bool:
        """Whether the state should be saved now."""
        return self.store is not None and self.clock() - self.saved >= self.store.every


@dataclass
class Flight:
    """The items in the batch, and how far the queue has been read."""

    rows: NDArray[np.int64]
    variants: NDArray[np.int64]
    told: NDArray[np.int64]
    queue: NDArray[np.int64]  # rows that were robust when the stage began
    position: int
    state: State
    tally: dict[str, Any]
    replay: Replay | None = None

    def select(self, keep: NDArray[np.bool_]) -> None:
        """Drop the other items."""
        if keep.all():
            return
        index = torch.from_numpy(np.flatnonzero(keep))
        if self.state:
            index = index.to(self.state["z"].device)
        self.rows, self.variants = self.rows[keep], self.variants[keep]
        self.told = self.told[keep]
        for name, tensor in self.state.items():
            self.state[name] = tensor[index]


def drive(made: Engine, stages: list[Stage], board: Board, watch: Watch, *, batch: int) -> bool:
    """Run the stages one after the other; False if the budget ended first.

    The state is saved at the end of each stage and now and then in between.
    """
    saved = watch.store.load(board) if watch.store else None
    first = 0
    flight = None
    if saved is not None:
        first = saved["stage"]
        made.counts = Counts(**saved["counts"])
        flight = _restore(made, stages, board, saved)
    for stage in stages:
        if stage.surrogate is not None:
            stage.surrogate.counts = made.counts
    before = work_done(made.counts)
    for k in range(first, len(stages)):
        flight = flight or _take_off(board, stages[k], made.device)
        while _refill(made, stages[k], k, board, flight, batch):
            if watch.expired():
                _save(made, board, watch, k, flight)
                board.finished |= ~board.robust
                if k == len(stages) - 1:
                    _mark_finished(stages[k], board, flight)
                board.tallies.append(_close(made, flight) | {"ended": False})  # not saved
                return False
            began = time.monotonic()
            _advance(made, stages[k], board, flight)
            _land(made, stages[k], board, flight, batch)
            flight.tally["seconds"] += time.monotonic() - began
            if watch.progress:
                elapsed = watch.clock() - watch.began
                left = work_left(stages, k, board, flight)
                left_s = seconds_left(work_done(made.counts) - before, elapsed, left)
                facts = {"elapsed": elapsed, "left": left_s, "device": made.device.type}
                watch.progress(_report(stages[k], board, flight) | facts)
            if watch.due():
                _save(made, board, watch, k, flight)
        board.tallies.append(_close(made, flight))
        flight = None
        _save(made, board, watch, k + 1, None)
    board.finished[:] = True
    return True


def _mark_finished(stage: Stage, board: Board, flight: Flight) -> None:
    """Points of the last stage whose every variant has run."""
    last = flight.position - (stage.variants - 1) * len(flight.queue)
    board.finished[flight.queue[: max(last, 0)]] = True
    board.finished[flight.rows] = False


def _take_off(board: Board, stage: Stage, device: torch.device) -> Flight:
    none = np.zeros(0, np.int64)
    queue = np.flatnonzero(board.robust) if stage.judge is None else np.arange(len(board))
    tally = {
        "stage": stage.name,
        "points": len(queue),
        "broken": 0,
        "seconds": 0.0,
        "evaluations": 0,
        "unverified": 0,
        "raised": 0.0,
        "odd": torch.zeros((), dtype=torch.int64, device=device),
    }
    return Flight(none, none, none, queue.astype(np.int64), 0, {}, tally)


def _refill(
    made: Engine, stage: Stage, number: int, board: Board, flight: Flight, batch: int
) -> bool:
    """Fill the batch from the queue, first variants of all points first; False if all is done."""
    room = batch - len(flight.rows)
    total = len(flight.queue) * stage.variants
    rows: list[int] = []
    variants: list[int] = []
    while room > len(rows) and flight.position < total:
        variant, place = divmod(flight.position, len(flight.queue))
        row = int(flight.queue[place])
        flight.position += 1
        if board.robust[row] or stage.judge is not None:
            rows.append(row)
            variants.append(variant)
    if rows:
        new = np.asarray(rows, np.int64)
        kinds = np.asarray(variants, np.int64)
        state = _begin(made, stage, number, board, new, kinds)
        if flight.state:
            state = {name: torch.cat([flight.state[name], state[name]]) for name in state}
        flight.state = state
        flight.rows = np.concatenate([flight.rows, new])
        flight.variants = np.concatenate([flight.variants, kinds])
        flight.told = np.concatenate([flight.told, np.zeros_like(new)])
    return len(flight.rows) > 0


def _begin(
    made: Engine,
    stage: Stage,
    number: int,
    board: Board,
    rows: NDArray[np.int64],
    variants: NDArray[np.int64],
) -> State:
    """State of new items."""
    fixed = _fixed(made, stage, board, rows, variants)
    seeds = board.seeds[torch.from_numpy(rows)]
    seeds = mix(mix(seeds, number + 1), torch.from_numpy(variants)).to(made.device)
    state = stage.rule.start(fixed["x"], board.ball, seeds)
    if stage.judge is None:
        low = torch.full((len(rows),), -torch.inf, device=made.device)
        bar = low.clone() if stage.surrogate else torch.zeros_like(low)
        state |= {"claim": fixed["x"], "claimed": low, "bar": bar}
    return fixed | state


def _fixed(
    made: Engine,
    stage: Stage,
    board: Board,
    rows: NDArray[np.int64],
    variants: NDArray[np.int64],
) -> State:
    """What never changes about items, so that it need not be saved."""
    x, y = board.take(rows, made.device)
    target = y
    if stage.targeted:
        target = board.targets[torch.from_numpy(rows), torch.from_numpy(variants)].to(made.device)
    return {"x": x, "y": y, "target": target}


def _advance(made: Engine, stage: Stage, board: Board, flight: Flight) -> None:
    """Evaluate and move every item a few times without waiting for the device."""
    left = stage.rule.evaluations - int(flight.told.max())
    steps = min(max(LOOKS[0], stage.rule.evaluations // LOOKS[1]), left)

    def step(state: State) -> State:
        told = _evaluate(made, stage, board, state)
        if stage.surrogate is None:
            _count(flight.tally, told)
        claim = _claim(stage, board, state, told) if stage.judge is None else {}
        return state | claim | stage.rule.tell(state, state["x"], board.ball, told)

    flight.replay = flight.replay or Replay(stage.surrogate or made)
    flight.state = flight.replay.run(step, flight.state, steps)
    flight.told = flight.told + steps
    flight.tally["evaluations"] += steps * len(flight.rows)


def _evaluate(made: Engine, stage: Stage, board: Board, state: State) -> Told:
    made = stage.surrogate or made
    if stage.score is None:
        return made.nearest(board.ball.norm, state["z"], state["y"])
    look = made.slope if stage.slope else made.value
    return look(stage.score, state["z"], state["y"], state["target"])


def _count(tally: dict[str, Any], told: Told) -> None:
    """Evaluations with scores or gradients that are no numbers."""
    odd = ~torch.isfinite(told.margin)
    if told.grad is not None:
        odd = odd | ~torch.isfinite(told.grad.flatten(1).abs().amax(1))
    tally["odd"] += odd.sum()


def _claim(stage: Stage, board: Board, state: State, told: Told) -> State:
    """Remember the most misclassified point of the ball."""
    margin = finite(told.margin)
    better = margin > state["claimed"]
    if stage.rule.strays:
        better &= board.ball.contains(state["z"], state["x"])
    return {
        "claim": torch.where(tall(better), state["z"], state["claim"]),
        "claimed": torch.where(better, margin, state["claimed"]),
    }


def _land(made: Engine, stage: Stage, board: Board, flight: Flight, batch: int) -> None:
    """Check claims in float32, let go of broken points and finished items."""
    done = flight.told >= stage.rule.evaluations
    if stage.judge is not None:
        if done.any():
            _raise_top(made, stage, board, flight, done, batch)
    else:
        state = flight.state
        claims = (state["claimed"] > state["bar"]).cpu().numpy()
        if made.precision != "float32":  # a near miss of the twin may be a hit of the model
            claims |= done & torch.isfinite(state["claimed"]).cpu().numpy()
        if claims.any():
            _verify(made, stage, board, flight, claims, batch)
        if stage.rule.strays and done.any():
            _note_distance(made, board, flight, done, batch)
    keep = ~done if stage.judge is not None else ~done & board.robust[flight.rows]
    flight.select(keep)


def _verify(
    made: Engine,
    stage: Stage,
    board: Board,
    flight: Flight,
    claims: NDArray[np.bool_],
    batch: int,
) -> None:
    """Ask the model itself about claimed points."""
    state = flight.state
    places = np.flatnonzero(claims)
    index = torch.from_numpy(places).to(made.device)
    points, x, y = state["claim"][index], state["x"][index], state["y"][index]
    wrong = made.verify(points, batch=batch).argmax(1) != y
    holds = (wrong & board.ball.contains(points, x)).cpu().numpy()
    bar = state["bar"].to(state["claimed"].dtype)  # that of the logits
    bar[index] = torch.maximum(bar[index], state["claimed"][index])
    state["bar"] = bar
    flight.tally["unverified"] += int((~holds).sum())
    distances = board.ball.distance(points, x).cpu().numpy()
    found = points.cpu()
    for k in np.flatnonzero(holds):
        row = int(flight.rows[places[k]])
        if not board.robust[row]:
            continue
        board.robust[row] = False
        board.broken_by[row] = stage.name
        board.evaluations[row] = flight.told[places[k]]
        board.nearest[row] = min(board.nearest[row], float(distances[k]))
        board.keep_point(row, found[k])
        flight.tally["broken"] += 1


def _note_distance(
    made: Engine, board: Board, flight: Flight, done: NDArray[np.bool_], batch: int
) -> None:
    """Keep how near the boundary attack came, if the model agrees."""
    index = torch.from_numpy(np.flatnonzero(done)).to(made.device)
    distance = flight.state["distance"][index].cpu().numpy()
    logits = made.verify(flight.state["best"][index], batch=batch)
    wrong = (logits.argmax(1) != flight.state["y"][index]).cpu().numpy()
    for row, near, counts in zip(flight.rows[done], distance, wrong, strict=True):
        if counts:
            board.nearest[row] = min(board.nearest[row], float(near))


def _raise_top(
    made: Engine,
    stage: Stage,
    board: Board,
    flight: Flight,
    done: NDArray[np.bool_],
    batch: int,
) -> None:
    """Keep the best of finished items, scored by the model itself."""
    assert stage.judge is not None
    index = torch.from_numpy(np.flatnonzero(done)).to(made.device)
    points: Images = flight.state["best"][index]
    logits = made.verify(points, batch=batch)
    scores = stage.judge(logits, flight.state["y"][index], flight.state["target"][index])
    found = points.cpu()
    for k, (row, score) in enumerate(zip(flight.rows[done], scores.tolist(), strict=True)):
        if score > board.top[row]:
            flight.tally["raised"] = flight.tally.get("raised", 0.0) + score - board.top[row]
            board.top[row] = score
            board.keep_point(int(row), found[k])


def _report(stage: Stage, board: Board, flight: Flight) -> dict[str, Any]:
    total = len(flight.queue) * stage.variants
    return {
        "stage": stage.name,
        "done": flight.position - len(flight.rows),
        "of": total,
        "robust": int(board.robust.sum()),
        "points": len(board),
    }


def _close(made: Engine, flight: Flight) -> dict[str, Any]:
    """The tally of a finished stage, in plain numbers."""
    tally = {k: int(v) if isinstance(v, Tensor) else v for k, v in flight.tally.items()}
    return tally | {"counts": made.counts.as_dict()}


def _save(made: Engine, board: Board, watch: Watch, stage: int, flight: Flight | None) -> None:
    if watch.store is None:
        return
    progress: dict[str, Any] = {"stage": stage, "counts": made.counts.as_dict(), "flight": None}
    if flight is not None:
        fixed = ("x", "y", "target")
        progress["flight"] = {
            "rows": torch.from_numpy(flight.rows),
            "variants": torch.from_numpy(flight.variants),
            "told": torch.from_numpy(flight.told),
            "queue": torch.from_numpy(flight.queue),
            "position": flight.position,
            "state": {k: v.cpu() for k, v in flight.state.items() if k not in fixed},
            "tally": flight.tally,
        }
    watch.store.save(board, progress)
    watch.saved = watch.clock()


def _restore(
    made: Engine, stages: list[Stage], board: Board, saved: dict[str, Any]
) -> Flight | None:
    kept = saved["flight"]
    if kept is None:
        return None
    rows, variants = kept["rows"].numpy(), kept["variants"].numpy()
    state: State = {}
    if len(rows):
        state = {name: tensor.to(made.device) for name, tensor in kept["state"].items()}
        state |= _fixed(made, stages[saved["stage"]], board, rows, variants)
    tally = {k: v.to(made.device) if isinstance(v, Tensor) else v for k, v in kept["tally"].items()}
    return Flight(
        rows, variants, kept["told"].numpy(), kept["queue"].numpy(), kept["position"], state, tally
    )
