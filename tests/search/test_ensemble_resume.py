"""An attack killed at any moment and resumed, against the same attack left alone."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attack_models import images, short, small_cnn
from counterlens.ball import Ball
from counterlens.errors import InputError
from counterlens.search import AttackSettings, robust, worst_confidence

# Forks one attempt after the other; each kills itself without warning at its moment.
CHILD = """
import hashlib, json, os, signal, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from attack_models import images, short, small_cnn
from counterlens.ball import Ball
from counterlens.search import AttackSettings, robust

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def attempt(state, moment):
    model = small_cnn(4)
    x = images(24)
    y = model(x).argmax(1)
    seen = {}
    def look(report):
        seen[report["stage"]] = seen.get(report["stage"], 0) + 1
        if moment == [report["stage"], seen[report["stage"]]]:
            die()
    if moment and moment[0] == "write":
        saves, whole = [0], torch.save
        def half(value, path):
            saves[0] += 1
            if saves[0] < moment[1]:
                return whole(value, path)
            Path(path).write_bytes(b"torn")
            die()
        torch.save = half
    settings = AttackSettings(batch=8, state=state, save_every=0, trust=False, progress=look)
    found = robust(model, x, y, Ball("l2", 0.2), version=short(4), settings=settings)
    digest = hashlib.sha256(found.points.numpy().tobytes()).hexdigest()
    stages = [[s["stage"], s["broken"], s["evaluations"]] for s in found.stages]
    answer = [found.robust.tolist(), digest, list(found.broken_by), stages, found.counts]
    Path(sys.argv[2], "answer.json").write_text(json.dumps(answer))

def forked(state, moment):
    child = os.fork()
    if child == 0:
        attempt(state, moment)
        os._exit(0)
    return os.waitpid(child, 0)[1]

folder = Path(sys.argv[2])
assert forked(None, None) == 0
plain = json.loads((folder / "answer.json").read_text())
(folder / "answer.json").unlink()
ends = [forked(folder / "state", moment) for moment in json.loads(sys.argv[3])]
ends.append(forked(folder / "state", None))
again = json.loads((folder / "answer.json").read_text())
print(json.dumps({"ends": ends, "plain": plain, "again": again}))
"""


def killed(folder, moments):
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            str(Path(__file__).parents[1]),
            str(folder),
            json.dumps(moments),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def test_killed_in_every_stage_and_inside_a_write_it_ends_the_same(tmp_path):
    moments = [
        ["apgd-ce", 2],
        ["write", 2],
        ["apgd-t", 1],
        ["apgd-t", 3],
        ["write", 1],
        ["fab-t", 2],
        ["square", 1],
        ["write", 3],
        ["square", 2],
    ]
    seen = killed(tmp_path, moments)
    assert seen["ends"][:-1] == [9] * len(moments)  # SIGKILL each time
    assert seen["ends"][-1] == 0
    assert seen["again"] == seen["plain"]
    robust_points = seen["plain"][0]
    assert 0 < sum(robust_points) < len(robust_points)
    assert len({name for name in seen["plain"][2] if name}) >= 2


class Stop(Exception):
    pass


def test_stopped_after_every_look_it_ends_the_same(tmp_path):
    model = small_cnn(4)
    x = images(12)
    y = model(x).argmax(1)
    base = AttackSettings(batch=8, trust=False)
    stages = short(4, steps=10, queries=20)
    plain = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=base)

    def stop(_):
        raise Stop

    attempts = 0
    stopping = replace(base, state=tmp_path, save_every=0.0)
    while True:  # saves come after looks, so let every second look pass
        attempts += 1
        looks = iter([None, stop])
        settings = replace(
            stopping, progress=lambda report, looks=looks: (next(looks, stop) or (lambda _: 0))(0)
        )
        try:
            again = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=settings)
            break
        except Stop:
            continue
    assert attempts > 3
    assert torch.equal(again.robust, plain.robust) and torch.equal(again.points, plain.points)
    assert again.broken_by == plain.broken_by and again.counts == plain.counts
    torch.testing.assert_close(again.distances, plain.distances)

    finished = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=stopping)
    assert torch.equal(finished.points, plain.points)  # read back, nothing done again


def test_a_budget_is_spent_in_parts(tmp_path):
    model = small_cnn(4)
    x = images(12)
    y = model(x).argmax(1)
    stages = short(4, steps=10, queries=20)
    settings = AttackSettings(batch=8, trust=False, state=tmp_path, budget=0.0)
    first = robust(model, x, y, Ball("l2", 0.2), version=stages, settings=settings)
    assert not first.complete
    whole = robust(
        model, x, y, Ball("l2", 0.2), version=stages, settings=replace(settings, budget=None)
    )
    plain = robust(
        model, x, y, Ball("l2", 0.2), version=stages, settings=AttackSettings(batch=8, trust=False)
    )
    assert whole.complete and torch.equal(whole.points, plain.points)
    assert first.bounds[0] <= whole.accuracy <= first.bounds[1]


def test_worst_confidence_resumes(tmp_path):
    model = small_cnn(4)
    x = images(6)
    base = AttackSettings(batch=4, trust=False)
    plain = worst_confidence(model, x, Ball("l2", 0.2), steps=10, restarts=2, settings=base)

    def stop(report):
        if report["stage"] == "apgd-lead":
            raise Stop

    saving = replace(base, state=tmp_path, save_every=0.0)
    with pytest.raises(Stop):
        worst_confidence(
            model,
            x,
            Ball("l2", 0.2),
            steps=10,
            restarts=2,
            settings=replace(saving, progress=stop),
        )
    again = worst_confidence(model, x, Ball("l2", 0.2), steps=10, restarts=2, settings=saving)
    assert torch.equal(again.scores, plain.scores) and torch.equal(again.points, plain.points)


def test_the_state_of_another_attack_is_refused(tmp_path):
    model = small_cnn(4)
    x = images(4)
    y = model(x).argmax(1)
    stages = short(4, steps=4, queries=5)
    settings = AttackSettings(batch=8, trust=False, state=tmp_path)
    robust(model, x, y, Ball("l2", 0.2), version=stages, settings=settings)
    for other in (
        lambda: robust(model, x, y, Ball("l2", 0.3), version=stages, settings=settings),
        lambda: robust(
            small_cnn(4, seed=1), x, y, Ball("l2", 0.2), version=stages, settings=settings
        ),
        lambda: robust(
            model, x, y, Ball("l2", 0.2), version=stages, settings=replace(settings, seed=1)
        ),
        lambda: robust(model, x, y, Ball("l2", 0.2), version=short(4, steps=5), settings=settings),
    ):
        with pytest.raises(InputError, match="state of another attack"):
            other()
