"""The commands that explain single pictures: explain METHOD, explain evaluate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from counterlens.cli.commands import command, modes
from counterlens.cli.options import app, check_classes, check_models, finish
from counterlens.errors import InputError
from counterlens.workflows.explain.options import METHODS
from counterlens.workflows.quality.options import EvaluateOptions

MODEL = "zoo:cifar10-plain-small"
IMAGE = "sample:cifar10#3"
SUMMARIES = {
    "pixel": (
        "Counterfactuals in pixel space, within budgets.",
        f"{MODEL} {IMAGE} --target dog --with zoo:cifar10-ratio-small",
    ),
    "diffusion": (
        "Counterfactuals by a generator (DiG-IN).",
        f"{MODEL} {IMAGE} --target dog",
    ),
    "dvce": (
        "Counterfactuals by guided sampling (DVCE).",
        f"{MODEL} {IMAGE} --target dog --robust zoo:cifar10-ratio-small",
    ),
    "cam": (
        "Where the evidence for a class lies: Grad-CAM, HiResCAM.",
        f"{MODEL} {IMAGE}",
    ),
    "colour": (
        "Which hues and saturations change the answer?",
        f"{MODEL} {IMAGE}",
    ),
    "frame": ("Which small shifts, scales and crops change the answer?", f"{MODEL} {IMAGE}"),
}


def earlier(words: list[str]) -> list[str]:
    """A line without a method, or with the method as an option, as it used to be spelled."""
    if "--evaluate" in words:
        return ["evaluate", *(word for word in words if word != "--evaluate")]
    words = [part for word in words for part in _split(word)]
    if "--method" not in words[:-1]:
        return ["pixel", *words]
    at = words.index("--method")
    method, rest = words[at + 1], [*words[:at], *words[at + 2 :]]
    if method in ("diffusion", "dvce"):
        rest = ["--sampling-steps" if word == "--steps" else word for word in rest]
    return [method, *rest]


def _split(word: str) -> list[str]:
    """--method=cam as two words."""
    return list(word.partition("=")[::2]) if word.startswith("--method=") else [word]


group = modes(
    app,
    "explain",
    default="pixel",
    arguments="MODEL IMAGE...",
    about="Show what would change the answer, or where the model looked.\n\n"
    "In place of MODEL and IMAGE the folder of an audit: its surest mistakes are explained.",
    example=f"{MODEL} {IMAGE} --target dog",
    earlier=earlier,
)


_WORDS = ("true", "predicted", "near", "near:head", "near:wordnet", "all", "random")


def _check_images(model: str, images: list[str]) -> None:
    """Refuse pictures that are not there before anything is loaded."""
    from counterlens.data.specs import check_picture

    if not images and not (Path(model) / "run.json").is_file():
        raise InputError("no images, expected files or SPEC#ID, e.g. sample:cifar10#12.")
    for one in images:
        check_picture(one)


def _add(method: str) -> None:
    """The command of one method."""
    summary, example = SUMMARIES[method]

    def explain(
        model: Annotated[
            str, typer.Argument(metavar="MODEL", help="The model, or the folder of an audit.")
        ],
        images: Annotated[
            list[str],
            typer.Argument(
                metavar="IMAGE",
                help="Picture files, or places in a set: SPEC#ID, SPEC#3, SPEC#0:16.",
            ),
        ] = [],
        *,
        options: Any,
    ) -> None:
        robust = getattr(options, "robust", None)
        check_models(model, *getattr(options, "judge", ()), *filter(None, [robust]))
        _check_images(model, images)
        check_classes(model, getattr(options, "target", ()), _WORDS)
        from counterlens.workflows.explain.run import explain as run_explain

        result = run_explain(model, images, method=method, options=options)
        finish(result, as_json=options.json, quiet=options.quiet)

    explain.__doc__ = summary
    command(group, METHODS[method], name=method, example=example)(explain)


for name in METHODS:
    _add(name)


@command(
    group,
    EvaluateOptions,
    example=f"{MODEL} sample:cifar10#0:20 --arm pixel --with zoo:cifar10-ratio-small --steps 20",
)
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, e.g. timm:resnet18.")],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="A labelled set, or places in one: SPEC#0:16."),
    ],
    options: EvaluateOptions,
) -> None:
    """How good are counterfactuals? Methods side by side."""
    check_models(model, *options.judge, *filter(None, [options.robust]))
    _check_images(model, images)
    from counterlens.workflows.quality.run import evaluate as run_evaluate

    result = run_evaluate(model, images, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
