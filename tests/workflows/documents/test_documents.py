"""Evidence and exports of one real audit, opened by the libraries they are for where installed."""

import json
import re
import sys
import zlib
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import yaml

import counterlens as cl
from counterlens.errors import InputError, RunExists
from counterlens.runs import Run
from counterlens.workflows._shared.result import Result

HEADINGS = (
    *("Purpose and intended use", "System", "Data", "Protocol", "Performance", "Groups"),
    *("Robustness and unknown inputs", "Release gates", "Limits", "Versions and hashes"),
)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("documents") / "run"
    return cl.audit(
        "zoo:cifar10-plain-small", "sample:cifar10", limit=60, ood="noise:uniform",
        require=["accuracy.top1>=0.999"], out=folder, quiet=True, device="cpu",
    )  # fmt: skip


def test_evidence_states_every_part_with_the_numbers_of_the_run(
    audited: Result, tmp_path: Path
) -> None:
    path = cl.evidence(audited, purpose="sorting | pictures", folder=tmp_path)
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## \d+\. (.+)$", text, re.M) == list(HEADINGS)
    number = audited.numbers["accuracy.top1"]
    row = next(line for line in text.splitlines() if line.startswith("| Accuracy |"))
    assert f"| {100 * number.value:.1f} % |" in row
    assert f"[{100 * number.low:.1f}, {100 * number.high:.1f}]" in row
    assert f"| {number.n} |" in row
    assert "Purpose: sorting | pictures" in text
    assert "Users and setting: not stated (--users)" in text
    assert "Robustness to adversarial changes was not measured" in text
    assert "Images of none of the classes were not measured" not in text  # it was
    assert "| accuracy.top1>=0.999 | FAILED |" in text
    assert sha256((audited.folder / "result.json").read_bytes()).hexdigest() in text
    assert audited.manifest["weights_hash"] in text
    few = sum(row["n"] < 30 for row in audited.table("per_class"))
    assert f"{few} classes have fewer than 30 images" in text


def test_the_pdf_has_pages_of_text_in_embedded_fonts(audited: Result, tmp_path: Path) -> None:
    cl.evidence(audited, folder=tmp_path)
    data = (tmp_path / "evidence.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", data)) >= 2
    assert b"/FontFile" in data or b"/Type3" in data
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S)
    drawn = b"".join(_inflated(stream) for stream in streams)
    assert drawn.count(b"Tj") + drawn.count(b"TJ") > 100  # letters, not pictures of letters


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_the_model_card_opens_in_huggingface_hub(audited: Result, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    path = cl.export(audited, "model-card", write_to=tmp_path / "README.md")
    card = hub.ModelCard.load(path)
    results = {one.metric_type: one for one in card.data.eval_results}
    number = audited.numbers["accuracy.top1"]
    found = results["accuracy.top1"]
    assert found.metric_value == pytest.approx(number.value)
    assert found.metric_args["low"] == pytest.approx(number.low)
    assert found.metric_args["n"] == number.n
    assert found.dataset_name == "cifar10"
    assert "calibration.temperature" not in results  # not measured on 60 images
    assert "| Accuracy |" in card.text


def test_numbers_that_must_not_be_quoted_are_not_in_the_card(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "audit", {"model": "m", "data": "d"})
    weak = {"verdict": "do not quote", "reasons": ["gradients are masked"]}
    numbers = {
        "accuracy.top1": cl.Number(0.5, 10, 0.3, 0.7, "p"),
        "robust.l2-1.accuracy": cl.Number(0.4, 10, 0.2, 0.6, "p", trust=weak),
        "robust.l2-2.accuracy": cl.Number(0.4, 10, 0.2, 0.6, "p", "budget ended", bound="upper"),
    }
    run.add_numbers(numbers)
    run.finish()
    text = cl.export(run.folder, "model-card").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    metrics = header["model-index"][0]["results"][0]["metrics"]
    assert [one["type"] for one in metrics] == ["accuracy.top1"]
    limits = cl.evidence(run.folder).read_text().split("## 9. Limits")[1]
    assert "do not quote, gradients are masked" in limits
    assert "only the upper bound: budget ended" in limits


def test_label_studio_takes_the_tasks(audited: Result, tmp_path: Path) -> None:
    folder = cl.export(audited, "label-studio", write_to=tmp_path / "ls")
    tasks = json.loads((folder / "tasks.json").read_text())
    rows = audited.table("gallery")
    assert [task["data"]["id"] for task in tasks] == [f"{r['group']}/{r['id']}" for r in rows]
    sdk = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk absent")
    interface = sdk.LabelInterface((folder / "config.xml").read_text())
    for task in tasks:
        assert interface.validate_task({"data": task["data"]})  # it cannot take predictions along
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []


def test_fiftyone_files_are_in_its_own_form(audited: Result, tmp_path: Path) -> None:
    folder = cl.export(audited, "fiftyone", write_to=tmp_path / "fo")
    stored = json.loads((folder / "labels.json").read_text())
    files = {path.stem for path in (folder / "data").iterdir()}
    assert files == set(stored["labels"])
    rows = audited.table("gallery")
    labels = [row["label"] for row in rows]
    assert [one and one["label"] for one in stored["labels"].values()] == labels
    assert set(stored["classes"]) >= {label for label in labels if label}
    with pytest.raises(RunExists, match="is not empty"):
        cl.export(audited, "fiftyone", write_to=tmp_path / "fo")


@pytest.mark.parametrize(
    ("form", "words"),
    [("croissant", "written of a frozen set"), ("fiftone", "Did you mean fiftyone")],
)
def test_a_wrong_form_is_one_line(audited: Result, form: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        cl.export(audited, form)
    assert "\n" not in str(caught.value)


def test_tensorboard_reads_the_numbers_and_absent_trackers_are_named(
    audited: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterlens.workflows._shared.trackers import check_trackers, log_run, metrics_of

    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs counterlens[train]"
    )
    log_run(audited.run, ["tensorboard"])
    events = reader.EventAccumulator(str(audited.folder / "tensorboard"))
    events.Reload()
    shown = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    expected = {name.replace(".", "/", 1): v for name, v in metrics_of(audited.run).items()}
    assert shown.keys() == expected.keys()
    assert np.allclose([shown[k] for k in expected], list(expected.values()), rtol=1e-5)
    assert shown["accuracy/top1.low"] == pytest.approx(audited.numbers["accuracy.top1"].low)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr("counterlens.workflows._shared.trackers.find_spec", lambda name: None)
    with pytest.raises(cl.CounterlensError, match=r"pip install 'counterlens\[mlflow\]'"):
        check_trackers(["mlflow"])
    with pytest.raises(InputError, match="Did you mean mlflow"):
        check_trackers(["mlfow"])
