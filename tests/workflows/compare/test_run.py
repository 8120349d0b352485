"""compare against the RATIO paper's own summary tables, closed forms, and plain loops.

The paper says of Tables 1 and 2 that RATIO with the smaller radius is, except for CIFAR-100, the
only model without a clear failure. The stated rule must say the same of the printed numbers.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import norm
from sklearn.metrics import log_loss

from counterlens.errors import InputError, RunExists
from counterlens.metrics.intervals.closed_form import newcombe, wilson
from counterlens.runs import LogitSet, Number, Run, stored_logits
from counterlens.workflows.compare.pairs import (
    difference_of_aurocs,
    difference_of_shares,
    paired_rows,
    robust_rows,
    worst_rows,
)
from counterlens.workflows.compare.run import _whole, compare, model_names, summarise
from report_runs import audit_run

KEYS = (
    "accuracy.top1",
    "robust.l2-0.5.accuracy",
    "calibration.ece",
    "ood.all.auroc",
    "ood.all.worst_auroc",
    "ood.all.mmc",
)
# Rows: accuracy, robust accuracy, ECE, AUC, worst-case AUC, MMC; in per cent, as printed.
PAPER = {
    "CIFAR-10": (
        "Plain OE ACET M0.5 AT0.5 AT0.25 JEM-0 R0.5 R0.25",
        "96.2 96.4 94.1 90.8 90.8 94.0 92.8 91.1 93.5",
        "0.0 0.0 52.3 69.3 70.4 65.0 40.5 73.3 70.5",
        "1.0 2.9 2.8 2.6 2.2 2.2 3.9 2.8 2.7",
        "94.2 96.5 94.7 81.8 88.9 92.7 75.0 95.6 95.0",
        "1.6 8.7 81.9 48.5 57.4 42.0 14.6 83.6 84.3",
        "62.0 31.9 39.1 62.7 55.8 55.2 69.7 31.9 33.9",
    ),
    "SVHN": (
        "Plain OE ACET AT0.5 AT0.25 R0.5 R0.25",
        "97.3 97.6 97.8 94.4 96.7 94.3 96.8",
        "0.9 0.3 28.8 68.1 63.0 68.4 64.8",
        "0.9 0.9 1.6 1.6 0.8 2.0 1.8",
        "96.9 99.6 99.8 91.0 97.0 99.8 99.9",
        "8.5 18.2 96.0 51.1 48.3 97.5 97.5",
        "61.5 16.3 11.8 67.1 49.1 12.1 11.1",
    ),
    "CIFAR-100": (
        "Plain OE AT0.5 AT0.25 R0.5 R0.25",
        "81.5 81.4 70.6 75.8 69.2 74.4",
        "0.0 0.0 43.2 37.3 45.6 42.4",
        "1.2 7.2 1.3 1.5 3.2 2.0",
        "84.0 91.9 75.6 79.4 87.0 86.9",
        "0.4 14.6 29.9 24.8 55.5 54.5",
        "51.1 21.8 45.8 47.1 24.4 31.0",
    ),
    "R.ImageNet": (
        "Plain OE ACET M3.5 AT3.5 AT1.75 R3.5 R1.75",
        "96.6 97.2 96.2 90.3 93.5 95.5 93.9 95.5",
        "0.0 0.0 6.2 47.7 47.7 36.7 49.2 43.0",
        "0.6 1.8 0.9 0.7 0.9 0.5 0.3 0.7",
        "92.7 98.9 97.74 83.6 84.3 86.5 97.2 97.8",
        "0.0 1.8 87.54 44.2 37.5 16.3 90.9 90.6",
        "67.9 20.6 34.85 69.2 75.2 81.8 33.6 32.3",
    ),
}


@pytest.mark.parametrize(
    ("table", "clean"),
    [("CIFAR-10", {"R0.25"}), ("SVHN", {"R0.25"}), ("CIFAR-100", set()), ("R.ImageNet", {"R1.75"})],
)
def test_the_rule_says_of_the_papers_tables_what_the_paper_says(
    table: str, clean: set[str]
) -> None:
    names, *rows = (line.split() for line in PAPER[table])
    numbers = {
        name: {
            key: Number(float(row[i]) / 100, 1, None, None, "as printed")
            for key, row in zip(KEYS, rows, strict=True)
        }
        for i, name in enumerate(names)
    }
    summary = summarise(numbers)
    failed = {row["model"] for row in summary if row["status"] == "fail"}
    assert set(names) - failed == clean


def number(value: float, half: float = 0.01, **more: object) -> Number:
    return Number(value, 100, value - half, value + half, "p", **more)  # type: ignore[arg-type]


def statuses(numbers: dict[str, dict[str, Number]], key: str) -> dict[str, str]:
    return {row["model"]: row["status"] for row in summarise(numbers) if row["key"] == key}


def test_a_gap_beyond_the_limit_fails_only_when_the_intervals_are_apart() -> None:
    key = "accuracy.top1"
    apart = {"a": {key: number(0.95)}, "b": {key: number(0.90)}, "c": {key: number(0.93)}}
    assert statuses(apart, key) == {"a": "best", "b": "fail", "c": "ok"}
    wide = {"a": {key: number(0.95, 0.05)}, "b": {key: number(0.90, 0.05)}}
    assert statuses(wide, key) == {"a": "best", "b": "worse"}


@pytest.mark.parametrize("n", [4, 8, 48])
def test_none_of_four_against_three_of_four_is_clear_although_the_intervals_overlap(n: int) -> None:
    """The oracle is Newcombe's interval of the difference of two proportions."""
    key, hits = "robust.l2-0.5.accuracy", (0, 3 * n // 4)
    assert newcombe(hits, (n, n))[1] < 0  # the first is clearly below the second
    shares = [Number(h / n, n, *wilson(h, n), "p") for h in hits]
    numbers = {"plain": {key: shares[0]}, "robust": {key: shares[1]}}
    assert statuses(numbers, key) == {"plain": "fail", "robust": "best"}


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_a_failure_is_what_newcombes_interval_calls_one(
    m: int, n: int, data: st.DataObject
) -> None:
    hits = data.draw(st.integers(0, m)), data.draw(st.integers(0, n))
    key = "robust.l2-0.5.accuracy"
    shares = [Number(h / k, k, *wilson(h, k), "p") for h, k in zip(hits, (m, n), strict=True)]
    found = statuses({"a": {key: shares[0]}, "b": {key: shares[1]}}, key)
    low, high = newcombe(hits, (m, n))
    beyond = abs(hits[0] / m - hits[1] / n) > 0.10 + 1e-9
    assert ("fail" in found.values()) == (beyond and not low <= 0 <= high)


def test_lower_is_better_for_confidence_on_foreign_images() -> None:
    numbers = {m: {"ood.svhn.mmc": number(v)} for m, v in (("a", 0.2), ("b", 0.3), ("c", 0.9))}
    assert statuses(numbers, "ood.mean of 1 OOD set.mmc") == {"a": "best", "b": "ok", "c": "fail"}


def test_a_number_that_must_not_be_quoted_is_never_best() -> None:
    key = "robust.l2-0.5.accuracy"
    masked = number(0.99, trust={"verdict": "do not quote"})
    numbers = {"masked": {key: masked}, "honest": {key: number(0.5)}, "none": {}}
    assert statuses(numbers, key) == {"masked": "do not quote", "honest": "best", "none": "missing"}


def test_means_run_over_the_sets_that_every_model_has() -> None:
    one = {"ood.a.auroc": number(0.9), "ood.b.auroc": number(0.7), "ood.c.auroc": number(0.1)}
    two = {"ood.a.auroc": number(0.8), "ood.b.auroc": number(0.8)}
    rows = {r["model"]: r for r in summarise({"one": one, "two": two})}
    assert rows["one"]["value"] == pytest.approx(0.8)
    assert rows["two"]["value"] == pytest.approx(0.8)
    assert rows["one"]["key"] == "ood.mean of 2 OOD sets.auroc"


def test_the_error_after_temperature_is_judged_where_it_is_known() -> None:
    numbers = {
        "a": {"calibration.ece": number(0.02), "calibration.ece_scaled": number(0.02)},
        "b": {"calibration.ece": number(0.20), "calibration.ece_scaled": number(0.02)},
    }
    assert {row["key"] for row in summarise(numbers)} == {"calibration.ece_scaled"}


def test_two_audits_are_compared_and_failures_are_data(tmp_path: Path) -> None:
    plain = audit_run(tmp_path / "plain", robust=0.02, worst=0.1)
    ratio = audit_run(tmp_path / "ratio", model="zoo:ratio", seed=1, robust=0.6, worst=0.8)
    run = compare([plain.folder, str(ratio.folder)], out=tmp_path / "c")
    failures = {(row["model"], row["key"]) for row in run.table("failures")}
    assert failures == {  # accuracy: 479 and 506 of 600, Newcombe's interval ends at −0.16 points
        ("zoo:cifar10-plain-small", "accuracy.top1"),
        ("zoo:cifar10-plain-small", "robust.l2-0.5.accuracy"),
        ("zoo:cifar10-plain-small", "ood.mean of 3 OOD sets.worst_auroc"),
    }
    assert run.numbers["compare.zoo-cifar10-plain-small.failures"].value == 3
    assert run.numbers["compare.zoo-ratio.failures"].value == 0
    assert run.run.done
    html = (run.folder / "report.html").read_text()
    assert "zoo:ratio has no clear failure" in html
    assert "A model fails where" in html


def test_the_paired_table_counts_the_same_images(tmp_path: Path) -> None:
    a, b = audit_run(tmp_path / "a"), audit_run(tmp_path / "b", model="other", seed=5)
    run = compare([a.folder, b.folder], out=tmp_path / "c")
    row = next(r for r in run.table("paired") if r["key"] == "accuracy.top1")
    parts = [row[k] for k in ("both_right", "only_first", "only_second", "both_wrong")]
    assert sum(parts) == row["n"] == 600
    difference = a.numbers["accuracy.top1"].value - b.numbers["accuracy.top1"].value
    assert row["difference"] == pytest.approx(difference)
    assert {r["key"] for r in run.table("paired")} >= {"ood.svhn.auroc", "ood.smooth.auroc"}
    key = "paired.zoo-cifar10-plain-small-vs-other.accuracy_top1"
    assert run.numbers[key].value == pytest.approx(difference)


def test_likelihoods_are_paired_and_the_lower_one_is_better(tmp_path: Path) -> None:
    a = audit_run(tmp_path / "a", skill=3.0)
    b = audit_run(tmp_path / "b", model="other", seed=5, skill=1.0)
    run = compare([a.folder, b.folder], out=tmp_path / "c")
    rows = {row["key"]: row for row in run.table("paired")}
    for key, heat in (("calibration.nll", 1.0), ("calibration.nll_scaled", 1.7)):
        losses = []
        for one in (a, b):
            found = stored_logits(one)["cifar10"]
            z = found.logits.astype(np.float64) / heat  # scikit-learn cuts what rounds to 0
            losses.append(log_loss(found.labels, softmax(z, axis=1)))
        assert rows[key]["difference"] == pytest.approx(losses[0] - losses[1], rel=1e-6)
        assert rows[key]["high"] < 0 and rows[key]["clear"] and rows[key]["n"] == 600
    page = (run.folder / "report.html").read_text()
    section = page[page.index("Paired differences") :]
    line = section[section.index("Negative log-likelihood") :]
    assert "zoo:cifar10-plain-small is better" in line[: line.index("</tr>")]


def met(run: Run, name: str, scores: list[float], ball: str) -> Run:
    """An audit that searched around unknown images, and what the model said there."""
    logits = np.stack([scores, np.zeros(len(scores))], 1)
    ids = [f"{name}/{i:05d}" for i in range(len(scores))]
    np.savez(run.path("tables", f"worst-{name}.npz"), logits=logits, ids=ids)
    return made_with(run, ood_attack=ball)


def made_with(run: Run, **settings: str) -> Run:
    run.note(settings={**run.manifest["settings"], **settings})
    return run


def test_worst_points_are_paired_where_both_were_searched_for_alike(tmp_path: Path) -> None:
    runs = {
        "one": met(audit_run(tmp_path / "a"), "svhn", [2.0, 3.0, 9.0], "l2:1.0"),
        "two": met(audit_run(tmp_path / "b", seed=5), "svhn", [4.0, 8.0], "l2:1.0"),
    }
    (row,) = worst_rows(runs)
    assert row["key"] == "ood.svhn.worst_auroc" and row["n"] == 600 + 2  # images both searched
    assert row["protocol"].endswith("worst points within l2:1.0")
    areas = []
    for run, worst in zip(runs.values(), ([2.0, 3.0], [4.0, 8.0]), strict=True):
        z = np.asarray(stored_logits(run)["cifar10"].logits, dtype=float) / 1.7
        top = np.sort(z, axis=1)[:, ::-1]
        odds = top[:, 0] - logsumexp(top[:, 1:], axis=1)
        areas.append(literal_auroc(odds, np.array(worst) / 1.7))
    assert row["difference"] == pytest.approx(areas[0] - areas[1])
    made_with(runs["two"], ood_attack="l2:0.5")
    assert worst_rows(runs) == []


def test_robust_accuracies_by_different_attacks_are_not_paired(tmp_path: Path) -> None:
    runs = {"one": audit_run(tmp_path / "a"), "two": audit_run(tmp_path / "b", seed=5)}
    for run, held in zip(runs.values(), ([True, True, False], [True, False, False]), strict=True):
        path = run.path("tables", "adversarial-l2-0.5.npz")
        np.savez(path, robust=held, all_ids=["a", "b", "c"])
        made_with(run, attack_version="standard")
    (row,) = robust_rows(runs)
    assert row["difference"] == pytest.approx(1 / 3) and row["only_first"] == 1
    made_with(runs["two"], attack_version="fast")
    assert robust_rows(runs) == []


def test_a_difference_is_trusted_as_far_as_the_worse_attack_behind_it(tmp_path: Path) -> None:
    runs = [
        audit_run(tmp_path / "a", finish=False),
        audit_run(tmp_path / "b", model="other", finish=False),
    ]
    for run, word in zip(runs, ("trusted", "weak"), strict=True):
        trust = {"verdict": word, "reasons": ["made up"]}
        number = Number(0.5, 3, 0.1, 0.9, "made up", trust=trust)
        run.add_numbers({"robust.l2-0.5.accuracy": number})
        np.savez(
            run.path("tables", "adversarial-l2-0.5.npz"), robust=[True] * 3, all_ids=list("abc")
        )
        run.finish()
    found = compare([run.folder for run in runs], out=tmp_path / "c")
    key = "paired.zoo-cifar10-plain-small-vs-other."
    assert found.numbers[f"{key}robust_l2-0_5_accuracy"].trust["verdict"] == "weak"
    assert found.numbers[f"{key}accuracy_top1"].trust is None
    page = (found.folder / "report.html").read_text()
    assert "an attack is weak" in page[page.index("Paired differences") :]


def test_runs_on_different_images_are_shown_but_not_judged(tmp_path: Path) -> None:
    a, b = audit_run(tmp_path / "a"), audit_run(tmp_path / "b", model="other")
    b.note(data_fingerprint={"cifar10": "beef"})
    run = compare([a.folder, b.folder], out=tmp_path / "c")
    assert {row["status"] for row in run.table("summary")} <= {"apart", "do not quote", "missing"}
    assert run.table("failures") == []
    assert "different images" in run.table("notes")[0]["note"]


def test_bad_runs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    good = audit_run(tmp_path / "good")
    unfinished = audit_run(tmp_path / "unfinished", finish=False)
    empty = Run.create(tmp_path / "empty", "train", {})
    empty.finish()
    for others, words in (
        ([], "expected two or more"),
        ([unfinished.folder], "unfinished"),
        ([empty.folder], "no numbers"),
        ([tmp_path / "nowhere"], r"no run\.json"),
    ):
        with pytest.raises(InputError, match=words):
            compare([good.folder, *others], out=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(RunExists):
        compare([good.folder, good.folder], out=good.folder)


def test_two_runs_of_one_model_get_different_names(tmp_path: Path) -> None:
    a, b = audit_run(tmp_path / "a"), audit_run(tmp_path / "b")
    names = model_names([a, b])
    assert len(set(names)) == 2
    assert all("cifar10-plain-small" in name for name in names)


def test_difference_of_shares_covers_the_truth_as_often_as_it_says() -> None:
    """Exact coverage by enumeration of all tables of n = 30 for one true pair of shares."""
    n, p, q = 30, 0.25, 0.1
    logs = np.concatenate([[0], np.cumsum(np.log(np.arange(1, n + 1)))])
    covered = 0.0
    for f, g in product(range(n + 1), repeat=2):
        if f + g > n:
            continue
        a = np.array([True] * f + [False] * (n - f))
        b = np.array([False] * f + [True] * g + [False] * (n - f - g))
        _, low, high = difference_of_shares(a, b)
        log = logs[n] - logs[f] - logs[g] - logs[n - f - g]
        log += f * np.log(p) + g * np.log(q) + (n - f - g) * np.log(1 - p - q)
        covered += np.exp(log) * (low <= p - q <= high)
    assert 0.93 <= covered <= 0.98


def test_equal_answers_differ_by_nothing_but_not_with_certainty() -> None:
    value, low, high = difference_of_shares(np.ones(20, bool), np.ones(20, bool))
    assert value == 0
    assert low < 0 < high


def literal_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in inside for y in outside]
    return sum(wins) / len(wins)


def literal_variance(in_a, out_a, in_b, out_b) -> float:  # type: ignore[no-untyped-def]
    def beats(x: float, y: float) -> float:
        return 1.0 if x > y else 0.5 if x == y else 0.0

    v10 = [
        np.mean([beats(xa, y) for y in out_a]) - np.mean([beats(xb, y) for y in out_b])
        for xa, xb in zip(in_a, in_b, strict=True)
    ]
    v01 = [
        np.mean([beats(x, ya) for x in in_a]) - np.mean([beats(x, yb) for x in in_b])
        for ya, yb in zip(out_a, out_b, strict=True)
    ]
    return float(np.var(v10, ddof=1) / len(v10) + np.var(v01, ddof=1) / len(v01))


@pytest.mark.parametrize("seed", range(4))
def test_difference_of_aurocs_equals_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    in_a, in_b = (rng.integers(0, 9, 25).astype(float) for _ in range(2))  # many ties
    out_a, out_b = (rng.integers(0, 7, 17).astype(float) for _ in range(2))
    value, low, high = difference_of_aurocs(in_a, out_a, in_b, out_b)
    expected = literal_auroc(in_a, out_a) - literal_auroc(in_b, out_b)
    half = norm.ppf(0.975) * np.sqrt(literal_variance(in_a, out_a, in_b, out_b))
    np.testing.assert_allclose(
        [value, low, high], [expected, expected - half, expected + half], atol=1e-12
    )


def kept(name: str, role: str, logits: np.ndarray, ids: str, labels: list[int]) -> LogitSet:
    return LogitSet(name, role, logits, np.array(labels), tuple(ids), 1.0)  # type: ignore[arg-type]


def test_images_are_paired_by_id_not_by_place() -> None:
    one = kept("d", "in", np.eye(3), "abc", [0, 1, 2])  # all right
    two = kept("d", "in", np.eye(3)[[2, 0, 1]], "cax", [2, 1, 1])
    assert paired_rows({"one": {"d": one}, "two": {"d": two}}) == []  # labels of a disagree
    two = kept("d", "in", np.eye(3)[[2, 1, 1]], "cax", [2, 0, 1])
    row, likelihood = paired_rows({"one": {"d": one}, "two": {"d": two}})
    assert (row["n"], row["only_first"], row["both_right"]) == (2, 1, 1)
    assert (likelihood["key"], likelihood["n"]) == ("calibration.nll", 2)
    assert likelihood["difference"] == pytest.approx(-0.5)  # sure of the wrong class once: 1 less


def test_near_certain_answers_do_not_tie() -> None:
    logits = np.array([[50.0, 0.0], [60.0, 0.0]])
    scores = [
        kept("d", role, logits[i : i + 1].repeat(2, 0), "ab", [-1, -1])
        for i, role in ((1, "in"), (0, "ood"))
    ]
    swapped = [
        kept("d", role, logits[i : i + 1].repeat(2, 0), "ab", [-1, -1])
        for i, role in ((0, "in"), (1, "ood"))
    ]
    rows = paired_rows(
        {
            "a": {"d": scores[0], "o": scores[1]},
            "b": {"d": swapped[0], "o": swapped[1]},
        }
    )
    (row,) = [r for r in rows if r["key"] == "ood.o.auroc"]
    assert row["difference"] == 1.0


def test_a_bound_is_neither_best_nor_a_failure_and_has_no_paired_difference() -> None:
    key = "robust.l2-0.5.accuracy"
    bound = Number(0.9, 48, 0.0, 0.95, "p", "budget ended, 0 of 48 settled", bound="upper")
    numbers = {
        "cut": {key: bound},
        "best": {key: Number(0.6, 48, 0.5, 0.7, "p")},
        "low": {key: Number(0.3, 48, 0.2, 0.4, "p")},
    }
    found = {row["model"]: row for row in summarise(numbers)}
    assert [found[name]["status"] for name in numbers] == ["incomplete", "best", "fail"]
    assert found["cut"]["bound"] == "upper" and found["cut"]["gap"] is not None
    row = {"key": key, "first": "cut", "second": "low"}
    assert not _whole(row, numbers) and _whole(row | {"first": "best"}, numbers)


def test_a_comparison_given_as_a_model_is_answered_with_its_audits(tmp_path: Path) -> None:
    audits = [audit_run(tmp_path / name, model=name) for name in ("a", "b")]
    both = compare([run.folder for run in audits], out=tmp_path / "both")
    named = ", ".join(str(run.folder) for run in audits)
    with pytest.raises(InputError, match="is a comparison, expected runs of models") as error:
        compare(both.folder, audits[0].folder)
    assert named in str(error.value)
