"""The driver: full batches, early exits, budget and resume, the same for every search.

Work comes as items, one per (point, variant); a variant is a target class or a restart. Items
of any age share a batch. Every few evaluations the finished items, and all items of points that
were broken, leave and the next ones take their place, so the batch stays full across the data
set; what remains to be done is a function of the saved state alone, so a resumed attack is the
same attack.
"""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterlens.ball import mix
from counterlens.search.ensemble.forecast import seconds_left, work_done, work_left
from counterlens.search.ensemble.stage import AttackMonitor, RunningBatch, SearchStage
from counterlens.search.ensemble.state import AttackState
from counterlens.search.fast.cuda_graph import Replay
from counterlens.search.fast.engine import Engine, PassCounts
from counterlens.search.rule import Evaluation, RuleState, finite, tall
from counterlens.types import Images

CHECK_EVERY = 10, 100  # evaluations between two checks: at least, and as a fraction of all


def drive(
    engine: Engine,
    stages: list[SearchStage],
    attack: AttackState,
    monitor: AttackMonitor,
    *,
    batch: int,
) -> bool:
    """Run the stages one after the other; False if the budget ended first.

    The state is saved at the end of each stage and now and then in between.
    """
    saved = monitor.store.load(attack) if monitor.store else None
    first = 0
    running = None
    if saved is not None:
        first = saved["stage"]
        engine.counts = PassCounts(**saved["counts"])
        running = _restore(engine, stages, attack, saved)
    for stage in stages:
        if stage.surrogate is not None:
            stage.surrogate.counts = engine.counts
    before = work_done(engine.counts)
    for k in range(first, len(stages)):
        running = running or _start_stage(attack, stages[k], engine.device)
        while _refill(engine, stages[k], k, attack, running, batch):
            if monitor.expired():
                _save(engine, attack, monitor, k, running)
                attack.finished |= ~attack.robust
                if k == len(stages) - 1:
                    _mark_finished(stages[k], attack, running)
                attack.tallies.append(_close(engine, running) | {"ended": False})  # not saved
                return False
            began = time.monotonic()
            _advance(engine, stages[k], attack, running)
            _verify_and_release(engine, stages[k], attack, running, batch)
            running.tally["seconds"] += time.monotonic() - began
            if monitor.progress:
                elapsed = monitor.clock() - monitor.began
                left = work_left(stages, k, attack, running)
                left_s = seconds_left(work_done(engine.counts) - before, elapsed, left)
                facts = {"elapsed": elapsed, "left": left_s, "device": engine.device.type}
                monitor.progress(_report(stages[k], attack, running) | facts)
            if monitor.due():
                _save(engine, attack, monitor, k, running)
        attack.tallies.append(_close(engine, running))
        running = None
        _save(engine, attack, monitor, k + 1, None)
    attack.finished[:] = True
    return True


def _mark_finished(stage: SearchStage, attack: AttackState, running: RunningBatch) -> None:
    """Points of the last stage whose every variant has run."""
    last = running.position - (stage.variants - 1) * len(running.queue)
    attack.finished[running.queue[: max(last, 0)]] = True
    attack.finished[running.rows] = False


def _start_stage(attack: AttackState, stage: SearchStage, device: torch.device) -> RunningBatch:
    none = np.zeros(0, np.int64)
    queue = np.flatnonzero(attack.robust) if stage.judge is None else np.arange(len(attack))
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
    return RunningBatch(none, none, none, queue.astype(np.int64), 0, {}, tally)


def _refill(
    engine: Engine,
    stage: SearchStage,
    number: int,
    attack: AttackState,
    running: RunningBatch,
    batch: int,
) -> bool:
    """Fill the batch from the queue, first variants of all points first; False if all is done."""
    room = batch - len(running.rows)
    total = len(running.queue) * stage.variants
    rows: list[int] = []
    variants: list[int] = []
    while room > len(rows) and running.position < total:
        variant, place = divmod(running.position, len(running.queue))
        row = int(running.queue[place])
        running.position += 1
        if attack.robust[row] or stage.judge is not None:
            rows.append(row)
            variants.append(variant)
    if rows:
        new = np.asarray(rows, np.int64)
        kinds = np.asarray(variants, np.int64)
        state = _begin(engine, stage, number, attack, new, kinds)
        if running.state:
            state = {name: torch.cat([running.state[name], state[name]]) for name in state}
        running.state = state
        running.rows = np.concatenate([running.rows, new])
        running.variants = np.concatenate([running.variants, kinds])
        running.num_evaluations = np.concatenate([running.num_evaluations, np.zeros_like(new)])
    return len(running.rows) > 0


def _begin(
    engine: Engine,
    stage: SearchStage,
    number: int,
    attack: AttackState,
    rows: NDArray[np.int64],
    variants: NDArray[np.int64],
) -> RuleState:
    """State of new items."""
    fixed = _fixed(engine, stage, attack, rows, variants)
    seeds = attack.seeds[torch.from_numpy(rows)]
    seeds = mix(mix(seeds, number + 1), torch.from_numpy(variants)).to(engine.device)
    state = stage.rule.start(fixed["x"], attack.ball, seeds)
    if stage.judge is None:
        low = torch.full((len(rows),), -torch.inf, device=engine.device)
        bar = low.clone() if stage.surrogate else torch.zeros_like(low)
        state |= {"claim": fixed["x"], "claimed": low, "bar": bar}
    return fixed | state


def _fixed(
    engine: Engine,
    stage: SearchStage,
    attack: AttackState,
    rows: NDArray[np.int64],
    variants: NDArray[np.int64],
) -> RuleState:
    """What never changes about items, so that it need not be saved."""
    x, y = attack.take(rows, engine.device)
    target = y
    if stage.targeted:
        target = attack.targets[torch.from_numpy(rows), torch.from_numpy(variants)].to(
            engine.device
        )
    return {"x": x, "y": y, "target": target}


def _advance(
    engine: Engine, stage: SearchStage, attack: AttackState, running: RunningBatch
) -> None:
    """Evaluate and move every item a few times without waiting for the device."""
    left = stage.rule.evaluations - int(running.num_evaluations.max())
    steps = min(max(CHECK_EVERY[0], stage.rule.evaluations // CHECK_EVERY[1]), left)

    def step(state: RuleState) -> RuleState:
        evaluation = _evaluate(engine, stage, attack, state)
        if stage.surrogate is None:
            _count(running.tally, evaluation)
        claim = _claim(stage, attack, state, evaluation) if stage.judge is None else {}
        return state | claim | stage.rule.update(state, state["x"], attack.ball, evaluation)

    running.replay = running.replay or Replay(stage.surrogate or engine)
    running.state = running.replay.run(step, running.state, steps)
    running.num_evaluations = running.num_evaluations + steps
    running.tally["evaluations"] += steps * len(running.rows)


def _evaluate(
    engine: Engine, stage: SearchStage, attack: AttackState, state: RuleState
) -> Evaluation:
    engine = stage.surrogate or engine
    if stage.score is None:
        return engine.nearest(attack.ball.norm, state["z"], state["y"])
    evaluate = engine.slope if stage.slope else engine.value
    return evaluate(stage.score, state["z"], state["y"], state["target"])


def _count(tally: dict[str, Any], evaluation: Evaluation) -> None:
    """Evaluations with scores or gradients that are no numbers."""
    odd = ~torch.isfinite(evaluation.margin)
    if evaluation.grad is not None:
        odd = odd | ~torch.isfinite(evaluation.grad.flatten(1).abs().amax(1))
    tally["odd"] += odd.sum()


def _claim(
    stage: SearchStage, attack: AttackState, state: RuleState, evaluation: Evaluation
) -> RuleState:
    """The point of the ball with the largest margin so far."""
    margin = finite(evaluation.margin)
    better = margin > state["claimed"]
    if stage.rule.strays:
        better &= attack.ball.contains(state["z"], state["x"])
    return {
        "claim": torch.where(tall(better), state["z"], state["claim"]),
        "claimed": torch.where(better, margin, state["claimed"]),
    }


def _verify_and_release(
    engine: Engine, stage: SearchStage, attack: AttackState, running: RunningBatch, batch: int
) -> None:
    """Verify claims in float32; drop the items that are finished or whose point is broken."""
    done = running.num_evaluations >= stage.rule.evaluations
    if stage.judge is not None:
        if done.any():
            _raise_top(engine, stage, attack, running, done, batch)
    else:
        state = running.state
        claims = (state["claimed"] > state["bar"]).cpu().numpy()
        if (
            engine.precision != "float32"
        ):  # a near miss of the fast copy may be a success on the model
            claims |= done & torch.isfinite(state["claimed"]).cpu().numpy()
        if claims.any():
            _verify(engine, stage, attack, running, claims, batch)
        if stage.rule.strays and done.any():
            _note_distance(engine, attack, running, done, batch)
    keep = ~done if stage.judge is not None else ~done & attack.robust[running.rows]
    running.select(keep)


def _verify(
    engine: Engine,
    stage: SearchStage,
    attack: AttackState,
    running: RunningBatch,
    claims: NDArray[np.bool_],
    batch: int,
) -> None:
    """Query the model itself at the claimed points."""
    state = running.state
    places = np.flatnonzero(claims)
    index = torch.from_numpy(places).to(engine.device)
    points, x, y = state["claim"][index], state["x"][index], state["y"][index]
    wrong = engine.verify(points, batch=batch).argmax(1) != y
    holds = (wrong & attack.ball.contains(points, x)).cpu().numpy()
    bar = state["bar"].to(state["claimed"].dtype)  # that of the logits
    bar[index] = torch.maximum(bar[index], state["claimed"][index])
    state["bar"] = bar
    running.tally["unverified"] += int((~holds).sum())
    distances = attack.ball.distance(points, x).cpu().numpy()
    images = points.cpu()
    for k in np.flatnonzero(holds):
        row = int(running.rows[places[k]])
        if not attack.robust[row]:
            continue
        attack.robust[row] = False
        attack.broken_by[row] = stage.name
        attack.evaluations[row] = running.num_evaluations[places[k]]
        attack.nearest[row] = min(attack.nearest[row], float(distances[k]))
        attack.record_point(row, images[k])
        running.tally["broken"] += 1


def _note_distance(
    engine: Engine, attack: AttackState, running: RunningBatch, done: NDArray[np.bool_], batch: int
) -> None:
    """Record the distance of the boundary attack's point where the model misclassifies it."""
    index = torch.from_numpy(np.flatnonzero(done)).to(engine.device)
    distance = running.state["distance"][index].cpu().numpy()
    logits = engine.verify(running.state["best"][index], batch=batch)
    wrong = (logits.argmax(1) != running.state["y"][index]).cpu().numpy()
    for row, near, counts in zip(running.rows[done], distance, wrong, strict=True):
        if counts:
            attack.nearest[row] = min(attack.nearest[row], float(near))


def _raise_top(
    engine: Engine,
    stage: SearchStage,
    attack: AttackState,
    running: RunningBatch,
    done: NDArray[np.bool_],
    batch: int,
) -> None:
    """Record the best points of finished items, scored by the model itself."""
    assert stage.judge is not None
    index = torch.from_numpy(np.flatnonzero(done)).to(engine.device)
    points: Images = running.state["best"][index]
    logits = engine.verify(points, batch=batch)
    scores = stage.judge(logits, running.state["y"][index], running.state["target"][index])
    images = points.cpu()
    for k, (row, score) in enumerate(zip(running.rows[done], scores.tolist(), strict=True)):
        if score > attack.top[row]:
            running.tally["raised"] = running.tally.get("raised", 0.0) + score - attack.top[row]
            attack.top[row] = score
            attack.record_point(int(row), images[k])


def _report(stage: SearchStage, attack: AttackState, running: RunningBatch) -> dict[str, Any]:
    total = len(running.queue) * stage.variants
    return {
        "stage": stage.name,
        "done": running.position - len(running.rows),
        "of": total,
        "robust": int(attack.robust.sum()),
        "points": len(attack),
    }


def _close(engine: Engine, running: RunningBatch) -> dict[str, Any]:
    """The tally of a finished stage, in plain numbers."""
    tally = {k: int(v) if isinstance(v, Tensor) else v for k, v in running.tally.items()}
    return tally | {"counts": engine.counts.as_dict()}


def _save(
    engine: Engine,
    attack: AttackState,
    monitor: AttackMonitor,
    stage: int,
    running: RunningBatch | None,
) -> None:
    if monitor.store is None:
        return
    progress: dict[str, Any] = {"stage": stage, "counts": engine.counts.as_dict(), "flight": None}
    if running is not None:
        fixed = ("x", "y", "target")
        progress["flight"] = {
            "rows": torch.from_numpy(running.rows),
            "variants": torch.from_numpy(running.variants),
            "told": torch.from_numpy(running.num_evaluations),
            "queue": torch.from_numpy(running.queue),
            "position": running.position,
            "state": {k: v.cpu() for k, v in running.state.items() if k not in fixed},
            "tally": running.tally,
        }
    monitor.store.save(attack, progress)
    monitor.saved = monitor.clock()


def _restore(
    engine: Engine, stages: list[SearchStage], attack: AttackState, saved: dict[str, Any]
) -> RunningBatch | None:
    stored = saved["flight"]
    if stored is None:
        return None
    rows, variants = stored["rows"].numpy(), stored["variants"].numpy()
    state: RuleState = {}
    if len(rows):
        state = {name: tensor.to(engine.device) for name, tensor in stored["state"].items()}
        state |= _fixed(engine, stages[saved["stage"]], attack, rows, variants)
    tally = {
        k: v.to(engine.device) if isinstance(v, Tensor) else v for k, v in stored["tally"].items()
    }
    return RunningBatch(
        rows,
        variants,
        stored["told"].numpy(),
        stored["queue"].numpy(),
        stored["position"],
        state,
        tally,
    )
