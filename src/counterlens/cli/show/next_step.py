"""What one usually types after a command; DATA and the like stand for what only the user knows."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens.runs import Run

MOST = 3
"""More pictures than these are not repeated in a command."""
EXPORTED = ("onnx:", "torchscript:", "export:")


def next_step(run: Any, parts: Sequence[Any] = ()) -> str:
    """The next command of the journey; empty where it depends or cannot be done.

    Args:
        run: a finished run.
        parts: the runs it consists of or compares.
    """
    step = _STEPS.get(str(run.manifest.get("command", "")))
    return step(run, parts) if step else ""


def short_path(path: Path) -> Path:
    """Relative to here where that is shorter."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _after_audit(run: Any, _: Sequence[Any] = ()) -> str:
    """Its mistakes explained, where there are some and the model has gradients."""
    uses = [row["found"] for row in run.table("doctor") if row["check"] == "uses"]
    wrong = any(row["group"] == "mistakes" for row in run.table("gallery"))
    can = wrong and any("counterfactuals in pixels: yes" in text for text in uses)
    return _typed("explain", short_path(run.folder), *_consent(run.manifest)) if can else ""


def _after_compare(_: Any, parts: Sequence[Any]) -> str:
    """The mistakes of the model that is right least often."""
    steps = [_after_audit(part) for part in sorted(parts, key=_accuracy)]
    return next(filter(None, steps), "")


def _after_explain(run: Any, _: Sequence[Any]) -> str:
    """The other view of the same pictures; after mistakes: the features that drive them."""
    settings = run.manifest["settings"]
    model, images = settings.get("model"), settings.get("images") or []
    if run.manifest.get("audit"):  # an audit's mistakes: the model is its folder
        audited = Run.open(model).manifest
        data = audited["settings"].get("data")
        where = ("--data", data if isinstance(data, str) else "DATA", "--mask", "cam")
        return _typed("neurons spurious", audited["model"], *where, *_consent(audited))
    typed = isinstance(model, str) and model and all(isinstance(one, str) for one in images)
    if not typed or not 0 < len(images) <= MOST:
        return ""
    mapped = settings.get("method") in ("pixel", "diffusion", "dvce")
    if mapped and model.startswith(EXPORTED):  # their layers cannot be read
        return ""
    return _typed("explain cam" if mapped else "explain", model, *images, *_consent(run.manifest))


def _after_train(run: Any, parts: Sequence[Any]) -> str:
    """The audit of what was trained; where it was audited already, its mistakes."""
    steps = [_after_audit(part) for part in parts[-1:]]
    if any(steps):
        return steps[0]
    model = run.folder / "model"
    return _typed("audit", short_path(model), "DATA") if model.is_dir() else ""


def _after_repair(run: Any, _: Sequence[Any]) -> str:
    """The audit of the repaired model; where no remedy helped, whether labels are to blame."""
    if not (run.folder / "repaired.json").is_file():
        check = run.manifest["settings"].get("check")
        whole = isinstance(check, str) and run.manifest.get("model")
        return _typed("curate labels", check, "--model", run.manifest["model"]) if whole else ""
    return _typed("audit", f"repaired:{short_path(run.folder)}", "DATA", *_consent(run.manifest))


_STEPS: dict[str, Callable[[Any, Sequence[Any]], str]] = {
    "audit": _after_audit,
    "compare": _after_compare,
    "explain": _after_explain,
    "train": _after_train,
    "repair": _after_repair,
}


def _typed(command: str, *words: object) -> str:
    return " ".join(["counterlens", command, *(shlex.quote(str(word)) for word in words)])


def _consent(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model that is the user's own code asks for."""
    return ("--trust-remote-code",) * (".py:" in str(manifest.get("model")))


def _accuracy(run: Any) -> float:
    number = run.numbers.get("accuracy.top1")
    return 1.0 if number is None or number.value is None else float(number.value)
