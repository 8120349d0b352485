"""Groups of an audit: numbers against counts over the table of answers that the run keeps."""

import numpy as np
import pytest

from counterlens.errors import InputError
from counterlens.runs import stored_logits
from counterlens.workflows._shared.result import Result
from counterlens.workflows.audit.run import audit

MODEL, DATA = "zoo:cifar10-plain-small", "sample:cifar10"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A real model on 200 images, by two columns that Python gives."""
    sites = {f"cifar10-test/{i}": "A" if i % 3 else "B" for i in range(10_000)}
    old = {f"cifar10-test/{i}": "yes" if i < 150 else "no" for i in range(10_000)}
    return audit(
        MODEL, DATA, groups={"site": sites, "old": old}, group_width=0.2, limit=200, quiet=True,
        ood="noise:uniform", out=tmp_path_factory.mktemp("groups") / "run",
        require="groups.site.B.accuracy>=0.5",
    )  # fmt: skip


def test_numbers_by_group_equal_counts(result: Result) -> None:
    kept = stored_logits(result.run)["cifar10"]
    right = np.asarray(kept.logits).argmax(1) == kept.labels
    site = np.array([int(name.split("/")[1]) % 3 > 0 for name in kept.ids])
    for value, inside in (("A", site), ("B", ~site)):
        number = result.numbers[f"groups.site.{value}.accuracy"]
        assert number.n == inside.sum()
        assert number.value == pytest.approx(right[inside].mean())
    gap = result.numbers["groups.site.A.gap"].value
    assert gap == pytest.approx(right[site].mean() - right[~site].mean())
    assert result.numbers["groups.worst.uniform.auroc"].value is not None
    assert result.table("gates")[0]["passed"]


def test_a_small_group_is_listed_and_not_judged(result: Result) -> None:
    number = result.numbers["groups.old.yes.accuracy"]
    assert number.value is None and number.reason is not None and "are needed" in number.reason
    assert [row["judged"] for row in result.table("groups")] == sorted(
        (row["judged"] for row in result.table("groups")), reverse=True
    )
    page = result.report.read_text()
    assert "Too small to be judged" in page and "site = B" in page


def test_the_values_are_kept_by_image(result: Result) -> None:
    rows = result.table("group_values")
    assert rows[0].keys() == {"image", "site", "old"} and len(rows) == 200


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"groups": "sitte"}, "has no column 'sitte'"),
        ({"groups": "class,,class"}, "each column once"),
        ({"groups": {"site": [1, 2]}}, "2 values and cifar10 20 images"),
        ({"groups": {"site": "A"}}, "is str"),
        ({"groups": {"site": {"x": 1}}}, "names none of the images"),
        ({"groups": 3}, "is int"),
        ({"groups": "class", "group_width": 0.7}, "group_width is 0.7"),
        ({"groups": "class", "require": "groups.worst.acuracy>=0.5"}, "does not measure"),
        ({"require": "groups.worst.accuracy>=0.5"}, "without --groups"),
        ({"groups": "class", "require": "groups.class.truckk.gap>=0"}, "Did you mean truck"),
    ],
)
def test_bad_groups_are_one_line(given: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        audit(MODEL, DATA, limit=20, quiet=True, **given)


def test_groups_of_one_image_are_named_as_too_small() -> None:
    with pytest.raises(InputError, match="1000 different values, expected at most 100"):
        audit(MODEL, DATA, groups={"site": [f"s{i}" for i in range(1000)]}, quiet=True)
