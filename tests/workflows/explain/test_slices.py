"""The worst mistakes of an audit, also of one slice alone, counted by hand."""

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.runs import Run, store_logits
from counterlens.workflows.explain.chapter import Audit

LOGITS = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [4.0, 0.0]])
"""The last image is right, the others are wrong; the first and the fourth are surest."""


@pytest.fixture
def audit(tmp_path) -> Audit:
    run = Run.create(tmp_path / "run", "audit", {"model": "m", "data": "shots.csv"})
    ids = [f"{k}.png" for k in range(5)]
    store_logits(run, "shots", LOGITS, labels=[1, 1, 1, 0, 0], ids=ids, temperature=1.0)
    slices = ["1: dark", "1: dark", "", "2: small", "1: dark"]
    run.write_table(
        "slice_images",
        [{"image": i, "slice": s, "half": "check", "right": False}
         for i, s in zip(ids, slices, strict=True)],
    )  # fmt: skip
    return Audit(run, "m", "shots.csv", "shots.csv", "")


def test_the_surest_mistakes_come_first(audit):
    assert audit.worst(3) == [f"shots.csv#{k}.png" for k in (0, 3, 1)]


def test_mistakes_of_a_slice_leave_out_other_images_and_right_answers(audit):
    assert audit.worst(3, 1) == [f"shots.csv#{k}.png" for k in (0, 1)]
    assert audit.worst(3, 2) == ["shots.csv#3.png"]


def test_a_slice_that_was_not_confirmed_is_named_with_those_that_were(audit):
    with pytest.raises(InputError, match="confirmed slices are: 1: dark; 2: small"):
        audit.worst(3, 4)
