"""Every use of a library that the base installation does not have; what is said without it.

    python extras_absent.py            in an environment of the base packages alone
    python extras_absent.py --hide     anywhere: the libraries are hidden from Python first
    python extras_absent.py --base     what needs none of them, too: each must end with 0

Run in an empty folder. One JSON object: for each use its exit code and its lines on standard error.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

# distribution of an extra → its module
MODULES = {
    "accelerate": "accelerate", "tensorboard": "tensorboard", "diffusers": "diffusers",
    "open_clip_torch": "open_clip", "transformers": "transformers", "onnx": "onnx",
    "onnx2torch": "onnx2torch", "onnxruntime": "onnxruntime", "fastapi": "fastapi",
    "python-multipart": "python_multipart", "uvicorn": "uvicorn", "pyarrow": "pyarrow",
    "pydicom": "pydicom", "tifffile": "tifffile", "ray": "ray", "mlflow": "mlflow",
    "trackio": "trackio", "wandb": "wandb",
}  # fmt: skip
# libraries that are used where they are installed, without an extra
FURTHER = ("datasets", "lightning", "pytorch_lightning", "pandas", "lpips", "multipart")
MODEL, DATA = "zoo:cifar10-plain-small", "sample:cifar10"
AUDIT = ("audit", MODEL, DATA, "--limit", "20", "--out", "tracked", "--log-to")
# use → extra (or library) that its one line must name, command
USES: dict[str, tuple[str, tuple[str, ...]]] = {
    "TensorBoard": ("counterlens[train]", (*AUDIT, "tensorboard")),
    "MLflow": ("counterlens[mlflow]", (*AUDIT, "mlflow")),
    "Weights & Biases": ("counterlens[wandb]", (*AUDIT, "wandb")),
    "trackio": ("counterlens[trackio]", (*AUDIT, "trackio")),
    "a model of transformers": ("counterlens[diffusion]", ("doctor", "hf:model", DATA)),
    "CLIP": ("counterlens[diffusion]", ("doctor", "clip:ViT-B-32", DATA)),
    "a generator": (
        "counterlens[diffusion]",
        ("explain", "diffusion", MODEL, f"{DATA}#0", "--target", "dog"),
    ),
    "ONNX": ("counterlens[onnx]", ("doctor", "onnx:net.onnx", DATA)),
    "the app": ("counterlens[app]", ("app", ".")),
    "Parquet": ("counterlens[formats]", ("audit", MODEL, "rows.parquet")),
    "DICOM": ("counterlens[formats]", ("audit", MODEL, "stack:scan.dcm", "--anyway")),
    "TIFF": ("counterlens[formats]", ("audit", MODEL, "stack:pages.tif", "--anyway")),
    "Ray": ("counterlens[ray]", ("curate", "adversarial", DATA, "--filter", MODEL, "--on", "ray")),
    "datasets": ("pip install datasets", ("audit", MODEL, "hf:cifar10#test")),
}


def hide(roots: set[str]) -> None:
    """Make the path finder answer that these are not installed, as in a fresh environment."""
    whole = PathFinder.find_spec

    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in roots else whole(name, path, target)

    PathFinder.find_spec = find_spec  # type: ignore[method-assign, assignment]


def files() -> None:
    """Files whose kind asks for a library; what is in them is never read."""
    Path("model").mkdir()
    Path("model/config.json").write_text('{"model_type": "resnet"}')
    for name in ("net.onnx", "rows.parquet"):
        Path(name).write_bytes(b"PAR1")
    Path("scan.dcm").write_bytes(b"\0" * 128 + b"DICM")
    Path("pages.tif").write_bytes(b"II*\0")


def command(*arguments: str) -> dict[str, Any]:
    """Exit code and standard error of `counterlens ARGUMENTS`."""
    from counterlens.cli import main

    sys.argv = ["counterlens", *arguments]
    with (
        contextlib.redirect_stderr(io.StringIO()) as err,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code: int | str | None = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return {"code": int(code or 0), "lines": err.getvalue().strip().splitlines()}


def function(work: Callable[[], object]) -> dict[str, Any]:
    """The same of a function: the text of its error."""
    from counterlens.errors import MissingExtra

    try:
        work()
    except MissingExtra as error:
        return {"code": 2, "lines": str(error).splitlines()}
    return {"code": 0, "lines": []}


def functions() -> dict[str, tuple[str, Callable[[], object]]]:
    """Uses that are no commands."""
    from counterlens.fit.distributed import World
    from counterlens.hooks import lightning_callback
    from counterlens.models.salient import load_salient

    def two_processes() -> None:
        os.environ["WORLD_SIZE"] = "2"
        try:
            World()
        finally:
            del os.environ["WORLD_SIZE"]

    return {
        "a segmenter": ("counterlens[segment]", lambda: load_salient("net.onnx")),
        "training by several processes": ("counterlens[train]", two_processes),
        "Lightning": ("pip install lightning", lambda: lightning_callback(lambda epoch: None)),
    }


def base() -> dict[str, dict[str, Any]]:
    """Commands that need none of them."""
    few = ("--limit", "40", "--quiet")
    return {
        " ".join(one[:2]): command(*one)
        for one in (
            ("audit", MODEL, DATA, *few, "--out", "run", "--attack", "linf:8/255",
             "--attack-version", "fast", "--attack-points", "4", "--ood", "noise:uniform"),
            ("compare", "run", "run", "--out", "both", "--quiet"),
            ("report", "run"),
            ("explain", MODEL, f"{DATA}#0", "--target", "dog", "--quiet", "--out", "explained"),
            ("evidence", "run", "--purpose", "tests"),
            ("export", "run", "model-card"),
            ("zoo", MODEL.partition(":")[2]),
        )
    }  # fmt: skip


def main() -> None:
    arguments = set(sys.argv)
    if "--hide" in arguments:
        hide({*MODULES.values(), *FURTHER})
    os.environ["COUNTERLENS_PROGRESS"] = "off"
    files()
    absent = {name: {"names": names, **command(*line)} for name, (names, line) in USES.items()}
    for name, (names, work) in functions().items():
        absent[name] = {"names": names, **function(work)}
    found = {"absent": absent, "base": base() if "--base" in arguments else {}}
    json.dump(found, sys.__stdout__, indent=1)


if __name__ == "__main__":
    main()
