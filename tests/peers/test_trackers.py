"""A run in MLflow, Weights & Biases and trackio, each with its real library, offline."""

from pathlib import Path

import pytest

from counterlens.runs import Number, Run
from counterlens.workflows._shared.trackers import log_run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    made = Run.create(tmp_path / "my-run", "audit", {"model": "m", "data": "d", "limit": None})
    made.add_numbers({"robust.l2-0.5.accuracy": Number(0.5, 10, 0.3, 0.7, "p")})
    made.finish()
    return made


def test_mlflow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    log_run(run, ["mlflow"])
    (stored,) = mlflow.search_runs(experiment_names=["counterlens"], output_format="list")
    assert stored.data.metrics["robust.l2-0.5.accuracy.low"] == 0.3
    assert stored.data.params["model"] == "m"
    assert stored.info.run_name == "my-run"
    names = [one.path for one in mlflow.MlflowClient().list_artifacts(stored.info.run_id)]
    assert names == ["result.json"]


def test_wandb(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    log_run(run, ["wandb"])
    assert wandb.run is None  # finished
    wandb.teardown()  # the service writes what it holds
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    data = stored.read_bytes()
    assert b"robust.l2-0.5.accuracy.low" in data
    assert b"my-run" in data


def test_trackio(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed")
    log_run(run, ["trackio"])
    data = b"".join(path.read_bytes() for path in (tmp_path / "trackio").rglob("*.db*"))
    assert b"robust.l2-0.5.accuracy.low" in data
