"""An attack says how long it will take: against a clock that only the model's work moves."""

import pytest
import torch
from torch import nn

from attack_models import images, short
from counterlens.ball import Ball
from counterlens.search.ensemble.driver import drive
from counterlens.search.ensemble.forecast import work_done
from counterlens.search.ensemble.stage import AttackMonitor
from counterlens.search.ensemble.state import initial_state
from counterlens.search.fast.engine import open_engine
from counterlens.workflows.audit.attacks.search import _progress

PASS = 0.5  # seconds that one forward pass of an image takes by that clock


class Constant(nn.Module):
    """Never fooled: logits do not depend on the image but by a hair."""

    def forward(self, x):
        rest = x.flatten(1).mean(1, keepdim=True) * 1e-3
        return torch.cat([10 + rest, -rest, rest * 2, rest * 3], 1)


def test_the_range_holds_what_an_attack_that_breaks_nothing_takes():
    """Nothing breaks, so the upper end is exact at every look."""
    x = images(20)
    seen = []
    with open_engine(Constant().eval(), x) as engine:
        clock = lambda: PASS * work_done(engine.counts)  # noqa: E731
        y = torch.zeros(20, dtype=torch.int64)
        attack = initial_state(engine, x, y, Ball("l2", 0.1), seed=0, batch=8)
        monitor = AttackMonitor(progress=seen.append, clock=clock)
        assert drive(engine, short(4, steps=10, queries=30), attack, monitor, batch=8)
        total = clock() - monitor.began
    assert len(seen) > 4
    for facts in seen:
        low, high = facts["left"]
        assert low <= total - facts["elapsed"] <= high + 1e-6
    first = seen[0]
    assert first["elapsed"] + first["left"][1] == pytest.approx(total, rel=0.02)


def facts(elapsed: float, left: tuple[float, float], device: str = "cpu") -> dict[str, object]:
    """What a driver tells its callback."""
    return {
        "stage": "apgd-ce", "done": 1, "of": 9, "robust": 8, "points": 9,
        "elapsed": elapsed, "left": left, "device": device,
    }  # fmt: skip


def test_a_long_attack_on_a_cpu_says_so_once_and_names_what_is_quicker(capsys):
    say = _progress("attack-l2-0.5")
    say(facts(1.0, (600.0, 1300.0)))
    assert capsys.readouterr().err == ""
    for elapsed in (4.0, 5.0, 6.0):
        say(facts(elapsed, (600.0, 1300.0)))
    (line,) = capsys.readouterr().err.splitlines()
    assert "about 10 to 22 min more on this CPU" in line
    for words in ("--attack-version fast", "--attack-points", "--budget", "--device cuda"):
        assert words in line


@pytest.mark.parametrize("told", [facts(4.0, (2.0, 9.0)), facts(4.0, (600.0, 900.0), "cuda")])
def test_a_short_attack_or_a_gpu_says_nothing(told, capsys):
    _progress("attack")(told)
    assert capsys.readouterr().err == ""
