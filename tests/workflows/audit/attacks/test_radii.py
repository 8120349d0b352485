"""Radii that hold every image are refused. Oracle: the distance from black to white."""

import pytest
import torch

from counterlens.ball import NORMS, Ball
from counterlens.errors import InputError
from counterlens.notation import check_radius
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.run import audit
from counterlens.workflows.explain.run import explain

GIVEN = ("zoo:cifar10-plain-small", "sample:cifar10")


@pytest.mark.parametrize("text", ["linf:8", "linf:1", "l∞:4"])
def test_whole_numbers_of_grey_levels_are_asked_about(text: str):
    with pytest.raises(InputError, match=rf"did you mean {text}/255\?"):
        parse_attack(text)


@pytest.mark.parametrize("norm", NORMS)
def test_the_limit_is_the_distance_from_black_to_white(norm):  # type: ignore[no-untyped-def]
    black, white = torch.zeros(1, 3, 5, 4), torch.ones(1, 3, 5, 4)
    widest = Ball(norm, 1.0).distance(white, black).item()
    check_radius("r", norm, 0.999 * widest, black.numel())
    with pytest.raises(InputError, match="no two images are further apart"):
        check_radius("r", norm, 1.001 * widest, black.numel())


def test_commands_refuse_them_before_they_work(tmp_path):  # type: ignore[no-untyped-def]
    out = tmp_path / "run"
    for attack in ("l2:128", "l1:4000"):  # 32 × 32 × 3: 55.4 and 3072
        with pytest.raises(InputError, match="no two images are further apart than"):
            audit(*GIVEN, attack=[attack], out=out, device="cpu", quiet=True)
    for norm, radius in (("linf", "8"), ("l2", "128")):
        with pytest.raises(InputError, match=f"did you mean {radius}/255"):
            explain(GIVEN[0], [f"{GIVEN[1]}#0"], norm=norm, radius=[radius], device="cpu", out=out)
    assert not out.exists()
    with pytest.raises(InputError, match="did you mean linf:8/255"):
        audit("nowhere:model", GIVEN[1], attack=["linf:8"], out=out)
