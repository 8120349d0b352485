"""The audit as its user runs it, on what is shipped; scikit-learn recomputes its numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from counterlens.data import open_set
from counterlens.metrics import split_by_id
from journeys.command import Command

MODEL = "zoo:cifar10-plain-small"
KEYS = {
    "accuracy.top1",
    "accuracy.top1_all",
    "calibration.ece",
    "calibration.ece_common",
    "calibration.rms",
    "calibration.temperature",
    "selective.aurra",
    *(f"ood.uniform.{metric}" for metric in ("auroc", "aupr", "fpr95", "mmc")),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished audit that several tests look at."""
    from counterlens.workflows.audit.run import audit

    folder = tmp_path_factory.mktemp("audit") / "run"
    audit(
        [MODEL], "sample:cifar10", ood=["noise:uniform"], calibrate="sample:cifar10-calibration",
        limit=120, out=folder, quiet=True,
    )  # fmt: skip
    return folder


def test_every_number_has_n_an_interval_around_its_value_and_a_protocol(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["schema"] == 1
    assert result["numbers"].keys() >= KEYS
    assert "calibration.rms_paper" not in result["numbers"]  # of one bin of 100 it skips the last
    for key, number in result["numbers"].items():
        assert number["n"] > 0, key
        assert number["low"] <= number["value"] <= number["high"], key
        assert len(number["protocol"]) > 20, key


def test_the_numbers_are_those_scikit_learn_finds_in_the_kept_logits(finished: Path) -> None:
    numbers = json.loads((finished / "result.json").read_text())["numbers"]
    logits = np.load(finished / "logits" / "cifar10.npy").astype(np.float64)
    facts = json.loads((finished / "logits" / "cifar10.json").read_text())
    right = accuracy_score(facts["labels"], logits.argmax(1))
    assert numbers["accuracy.top1"]["value"] == pytest.approx(right, abs=1e-12)

    outside = np.load(finished / "logits" / "uniform.npy").astype(np.float64)
    scores = [_log_odds(z / facts["temperature"]) for z in (logits, outside)]
    truth = np.r_[np.ones(len(logits)), np.zeros(len(outside))]
    expected = roc_auc_score(truth, np.concatenate(scores))
    assert numbers["ood.uniform.auroc"]["value"] == pytest.approx(expected, abs=1e-9)


def _log_odds(z: np.ndarray) -> np.ndarray:
    """Of the top class: its logit less the log-sum of all the others."""
    ordered = np.sort(z, 1)
    rest = ordered[:, :-1]
    high = rest.max(1, keepdims=True)
    return ordered[:, -1] - (high[:, 0] + np.log(np.exp(rest - high).sum(1)))


def test_images_given_to_fit_the_temperature_leave_all_others_to_report_on(finished: Path) -> None:
    ids = json.loads((finished / "logits" / "cifar10.json").read_text())["ids"]
    numbers = json.loads((finished / "result.json").read_text())["numbers"]
    temperature = numbers["calibration.temperature"]
    assert len(ids) == numbers["accuracy.top1"]["n"] == temperature["n"] == 120
    assert "120 images of cifar10-calibration" in temperature["protocol"]


def test_the_report_is_one_file_that_names_no_outside_address(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert page.count("data:image/png") >= 12


def test_the_manifest_says_what_was_measured(finished: Path) -> None:
    manifest = json.loads((finished / "run.json").read_text())
    assert manifest["settings"]["model"] == MODEL
    assert len(manifest["weights_hash"]) == 64
    assert manifest["data_fingerprint"].keys() == {"cifar10", "uniform"}
    assert manifest["versions"].keys() >= {"torch", "timm", "counterlens"}
    assert (finished / "DONE").exists() and not (finished / "state").exists()


def test_the_last_line_is_the_run_folder_and_a_failed_gate_exits_with_one(
    counterlens: Command,
) -> None:
    said = counterlens(
        *("audit", MODEL, "sample:cifar10", "--limit", "60", "--out", "here"),
        *("--require", "accuracy.top1>=0.5", "--require", "accuracy.top1.low>=0.999"),
    )
    assert (said.code, said.last) == (1, "here")
    gates = [json.loads(line) for line in Path("here/tables/gates.jsonl").read_text().splitlines()]
    assert [gate["passed"] for gate in gates] == [True, False]
    again = counterlens("audit", MODEL, "sample:cifar10", "--out", "here")
    assert again.code == 2 and "finished run" in again.err


def test_json_is_all_that_standard_output_holds(counterlens: Command) -> None:
    rules = ("accuracy.top1>=0.01", "accuracy.top1>=1.01")
    said = counterlens(
        *("audit", MODEL, "sample:cifar10", "--limit", "60", "--json", "--quiet", "--out", "here"),
        *(word for rule in rules for word in ("--require", rule)),
    )
    assert said.code == 1
    answer = json.loads(said.out)
    assert answer["numbers"]["accuracy.top1"]["n"] > 40
    assert [(gate["gate"], gate["passed"]) for gate in answer["gates"]] == [
        (rules[0], True),
        (rules[1], False),
    ]
    assert answer["gates"][0]["value"] == answer["numbers"]["accuracy.top1"]["value"]
    assert Path(answer["report"]) == Path("here/report.html") and Path(answer["report"]).exists()


def test_an_audit_has_the_numbers_that_its_gates_may_name(finished: Path) -> None:
    from counterlens.workflows.audit.gates import possible_keys
    from counterlens.workflows.audit.settings import Settings

    settings = Settings(model=MODEL, data="sample:cifar10", ood=("noise:uniform",))
    unlike = {"bias.shape", "bias.texture"}  # of images with two cues
    unlike |= {"calibration.rms_paper"}  # of more than one bin of 100 images
    measured = set(json.loads((finished / "result.json").read_text())["numbers"])
    assert measured == set(possible_keys(settings)) - unlike


def test_two_models_are_put_side_by_side(counterlens: Command) -> None:
    said = counterlens(
        *("audit", MODEL, "zoo:cifar10-ratio-small", "sample:cifar10"),
        *("--limit", "60", "--out", "both"),
    )
    assert (said.code, said.last) == (0, "both/compare")
    rows = [
        json.loads(line)
        for line in Path("both/compare/tables/paired.jsonl").read_text().splitlines()
    ]
    assert any(row["n"] > 40 for row in rows)


def test_a_family_is_named_described_and_drawn(counterlens: Command) -> None:
    said = counterlens(
        *("audit", f"small={MODEL}", "robust=zoo:cifar10-ratio-small", "sample:cifar10"),
        *("--about", "robust: training=by hand", "--limit", "60", "--out", "both"),
    )
    assert said.code == 0, said.err
    table = Path("both/compare/tables/families.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in table.splitlines()]
    assert [(r["model"], r["family"], r["training"]) for r in rows] == [
        ("small", "resnet", "plain"),
        ("robust", "resnet", "by hand"),
    ]
    page = Path("both/compare/report.html").read_text("utf-8")
    assert "Accuracy against size" not in page  # two points say nothing
    assert "Accuracy against coverage" in page
    assert Path("both/1-small/report.html").is_file()


def test_facts_about_no_model_are_refused_before_anything_is_made(counterlens: Command) -> None:
    said = counterlens("audit", MODEL, "sample:cifar10", "--about", "other: family=x")
    assert said.code == 2
    assert "NAME one of zoo:cifar10-plain-small" in said.err
    assert counterlens.left_behind() == []


def test_an_attack_gives_a_number_with_a_verdict(counterlens: Command) -> None:
    said = counterlens(
        *("audit", MODEL, "sample:cifar10", "--limit", "40", "--attack", "l2:1.0", "--out", "a"),
        *("--attack-points", "6"),
    )
    assert said.code == 0, said.err
    number = json.loads(Path("a/result.json").read_text())["numbers"]["robust.l2-1.0.accuracy"]
    assert number["n"] == 6 and number["value"] <= 0.34
    assert number["trust"]["verdict"] in ("trusted", "weak", "do not quote")
    with np.load("a/tables/adversarial-l2-1.0.npz") as kept:
        points = kept["points"]
    assert len(points) >= 3
    assert points.min() >= 0 and points.max() <= 1


def test_the_images_reported_on_are_the_ones_attacked(counterlens: Command) -> None:
    said = counterlens(
        *("audit", MODEL, "sample:cifar10", "--limit", "560", "--attack", "l2:0.02", "--out", "a"),
        *("--attack-version", "fast", "--attack-points", "6", "--budget", "2s", "--quiet"),
    )
    assert said.code == 0, said.err
    numbers = json.loads(Path("a/result.json").read_text())["numbers"]
    clean, robust = numbers["accuracy.top1"], numbers["robust.l2-0.02.accuracy"]
    with np.load("a/tables/adversarial-l2-0.02.npz") as kept:
        attacked = kept["all_ids"].tolist()
    assert not split_by_id(attacked, 0.2).any()  # none of them served to fit the temperature
    assert robust["n"] == len(attacked) == 6 < clean["n"] < 560
    assert 0 < robust["value"] <= 1
    assert f"the first 6 of the {clean['n']} reported images" in robust["protocol"]


def test_a_killed_audit_goes_on_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    command = [
        *(sys.executable, "-m", "counterlens", "audit", MODEL, "sample:cifar10"),
        *("--limit", "60", "--ood", "noise:uniform", "--ood", "noise:smooth", "--quiet"),
    ]
    first = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 240
    while not list(out.glob("state/outputs-in-*.npy")) and time.monotonic() < until:
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert not (out / "DONE").exists()

    from counterlens.workflows.audit.run import audit

    settings = {"ood": ["noise:uniform", "noise:smooth"], "limit": 60, "quiet": True}
    audit([MODEL], "sample:cifar10", out=out, resume=True, **settings)
    whole = audit([MODEL], "sample:cifar10", out=tmp_path / "whole", **settings)
    resumed = json.loads((out / "result.json").read_text())["numbers"]
    assert resumed == json.loads((whole.folder / "result.json").read_text())["numbers"]
    smooth = open_set("noise:smooth@sample:cifar10", limit=60)  # from the audited images
    assert whole.manifest["data_fingerprint"]["smooth"] == smooth.fingerprint
