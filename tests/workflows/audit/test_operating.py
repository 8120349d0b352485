"""Operating points of an audit: a real model; rates against counts over the kept logits."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from counterlens.errors import InputError
from counterlens.runs import stored_logits
from counterlens.workflows._shared.result import Result
from counterlens.workflows.audit.operating import read_costs
from counterlens.workflows.audit.run import audit

MODEL, DATA = "zoo:cifar10-plain-small", "sample:cifar10"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """600 images, a fifth of which calibrates."""
    folder = tmp_path_factory.mktemp("operating")
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
             "truck"]  # fmt: skip
    rows = [["", *names]]
    for j, name in enumerate(names):
        rows.append([name, *(str(0 if j == k else 5 if j == 3 else 1) for k in range(10))])
    (folder / "costs.csv").write_text("\n".join(",".join(row) for row in rows))
    return audit(
        MODEL, DATA, limit=600, quiet=True, anyway=True, out=folder / "run", groups="class",
        threshold=["coverage:0.8", "risk:0.1", "fpr:cat:0.05", "recall:cat:0.99"],
        costs=folder / "costs.csv", require="operating.risk-0.1.risk<=0.1",
    )  # fmt: skip


def test_rates_are_those_of_the_reported_images(result: Result) -> None:
    kept = stored_logits(result.run)["cifar10"]
    p = softmax(np.asarray(kept.logits, dtype=np.float64), axis=1)
    sure, right = p.max(1), p.argmax(1) == kept.labels
    t = result.numbers["operating.coverage-0.8.threshold"].value
    assert t is not None
    assert result.numbers["operating.coverage-0.8.coverage"].value == (sure >= t).mean()
    assert result.numbers["operating.coverage-0.8.risk"].value == (~right[sure >= t]).mean()
    t = result.numbers["operating.fpr-cat-0.05.threshold"].value
    assert t is not None
    called, cat = p[:, 3] >= t, kept.labels == 3
    assert result.numbers["operating.fpr-cat-0.05.fpr"].value == called[~cat].mean()
    assert result.numbers["operating.fpr-cat-0.05.recall"].value == called[cat].mean()


def test_too_few_calibration_images_are_a_reason_not_a_threshold(result: Result) -> None:
    number = result.numbers["operating.recall-cat-0.99.threshold"]
    assert number.value is None and number.reason is not None and "99 are needed" in number.reason


def test_costs_move_decisions_and_the_page_shows_the_points(result: Result) -> None:
    assert result.numbers["operating.costs.mean"].value is not None
    assert result.numbers["operating.costs.saved"].low is not None
    page = result.report.read_text()
    assert "Operating points" in page and "99 are needed" in page


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"threshold": "recall:catt:0.9"}, "Did you mean cat"),
        ({"threshold": ["risk:0.1", "risk:0.1"]}, "is given twice"),
        ({"costs": "nowhere.csv"}, "is no file"),
        ({"require": "operating.risk-0.1.risk<=0.1"}, "without its --threshold"),
    ],
)
def test_bad_points_are_one_line(given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        audit(MODEL, DATA, limit=20, quiet=True, **given)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (",a,b\na,0,1\nc,1,0\n", "rows are not the 2 classes"),
        (",a,c\na,0,1\nb,1,0\n", "columns are not the 2 classes"),
        (",a,b\na,0,x\nb,1,0\n", "one number in every cell"),
    ],
)
def test_costs_of_other_classes_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        read_costs(tmp_path / "costs.csv", ("a", "b"))


def test_costs_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "costs.csv").write_text(",b,a\nb,1,2\na,3,4\n")
    assert read_costs(tmp_path / "costs.csv", ("a", "b")).tolist() == [[4, 3], [2, 1]]
