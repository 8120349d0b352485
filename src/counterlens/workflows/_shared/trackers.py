"""Finished runs in experiment trackers: MLflow, Weights & Biases, TensorBoard, trackio.

Each library is imported only when its name was given. A number becomes three metrics, its value and
the ends of its interval; settings become parameters, result.json and report.html artefacts where
the tracker keeps files. Where the tracker writes is its own matter: MLFLOW_TRACKING_URI, WANDB_MODE
and so on hold as ever. TensorBoard's events lie in the run folder: tensorboard --logdir runs.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from counterlens.errors import InputError, MissingExtra, nearest
from counterlens.runs import Run

PROJECT = "counterlens"
"""Experiment or project under which runs are logged."""
FILES = ("result.json", "report.html")
EXTRAS = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "train", "trackio": "trackio"}
"""Library → the extra that installs it."""


def check_trackers(names: Iterable[str]) -> None:
    """Refuse an unknown tracker, or one whose library is absent, before anything is computed."""
    for name in names:
        if name not in EXTRAS:
            near = nearest(name, EXTRAS)
            hint = f" Did you mean {near}?" if near else ""
            raise InputError(f"log_to is {name!r}, expected one of {', '.join(EXTRAS)}.{hint}")
        if find_spec(name) is None:
            raise MissingExtra(
                f"log_to {name} needs {name}. Install it: pip install "
                f"'counterlens[{EXTRAS[name]}]'."
            )


def log_run(run: Run, names: Iterable[str]) -> None:
    """Log a finished run to each of the trackers."""
    for name in names:
        _WRITERS[name](run)


def metrics_of(run: Run) -> dict[str, float]:
    """The numbers of a run as metrics: KEY, KEY.low and KEY.high; those without a value are not.

    Names have only letters, digits and the signs . _ - which every tracker takes.
    """
    out: dict[str, float] = {}
    for key, number in run.numbers.items():
        ends = {key: number.value, f"{key}.low": number.low, f"{key}.high": number.high}
        out |= {name: value for name, value in ends.items() if value is not None}
    return {"".join(c if c.isascii() else "_" for c in name): v for name, v in out.items()}


def _parameters(run: Run) -> dict[str, str]:
    settings: Mapping[str, Any] = run.manifest["settings"]
    parameters = {
        name: str(value)[:250] for name, value in settings.items() if value not in (None, [])
    }
    return {**parameters, "counterlens": str(run.manifest["versions"].get("counterlens", ""))}


def _mlflow(run: Run) -> None:
    import mlflow

    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name=run.folder.name, nested=mlflow.active_run() is not None):
        mlflow.log_params(_parameters(run))
        mlflow.log_metrics(metrics_of(run))
        for name in FILES:
            if (run.folder / name).exists():
                mlflow.log_artifact(str(run.folder / name))


def _wandb(run: Run) -> None:
    import wandb

    own = wandb.run is None
    facts = {"project": PROJECT, "name": run.folder.name, "config": _parameters(run)}
    logged = wandb.init(**facts) if own else wandb.run
    logged.log(metrics_of(run))
    files = wandb.Artifact(f"{PROJECT}-{run.folder.name}"[:120], type="audit")
    for name in FILES:
        if (run.folder / name).exists():
            files.add_file(str(run.folder / name))
    logged.log_artifact(files)
    if own:
        logged.finish()


def _tensorboard(run: Run) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.folder / "tensorboard")) as writer:
        for name, value in metrics_of(run).items():
            writer.add_scalar(name.replace(".", "/", 1), value)
        lines = [f"| {name} | {value} |" for name, value in _parameters(run).items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))


def _trackio(run: Run) -> None:
    import trackio

    trackio.init(project=PROJECT, name=run.folder.name, config=_parameters(run))
    trackio.log(metrics_of(run))
    trackio.finish()


_WRITERS: dict[str, Callable[[Run], None]] = {
    "mlflow": _mlflow,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
}
