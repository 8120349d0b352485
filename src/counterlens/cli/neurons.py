"""The commands that show what drives a network's units: neurons METHOD."""

from typing import Annotated, Any

import typer

from counterlens.cli.commands import command, modes
from counterlens.cli.options import app, check_models, check_sets, finish
from counterlens.workflows.neurons.options import METHODS

MODEL = "zoo:cifar10-plain-small"
SUMMARIES = {
    "show": (
        "Pictures from nothing that drive units; maps on pictures.",
        f"{MODEL} --unit 3 --image sample:cifar10#3",
    ),
    "diffusion": (
        "Pictures that drive units, by a generator (DiG-IN).",
        f"{MODEL} --unit 3 --data sample:cifar10 --count 2",
    ),
    "npca": (
        "Components of a class, and the harm they do.",
        f"{MODEL} --npca cat:0 --data sample:cifar10",
    ),
    "spurious": (
        "Features ranked by how far they live on the background.",
        f"{MODEL} --data sample:cifar10 --mask cam --limit 200",
    ),
    "counterfactual": (
        "A picture with a feature raised and lowered.",
        f"{MODEL} --unit 3 --image sample:cifar10#3",
    ),
}


def earlier(words: list[str]) -> list[str]:
    """A line without a method, which used to be chosen by the options that came."""
    words = [part for word in words for part in _split(word)]
    words = ["--mask" if word == "--masks" else word for word in words]
    method = "pixel"
    if "--method" in words[:-1]:
        at = words.index("--method")
        method = words[at + 1]
        words = [*words[:at], *words[at + 2 :]]
    if "--spurious" in words:
        return ["spurious", *(word for word in words if word != "--spurious")]
    if method != "pixel":
        return ["counterfactual" if "--image" in words else method, *words]
    return ["npca" if "--npca" in words else "show", *words]


def _split(word: str) -> list[str]:
    """--method=diffusion as two words."""
    return list(word.partition("=")[::2]) if word.startswith("--method=") else [word]


group = modes(
    app,
    "neurons",
    default="show",
    arguments="MODEL",
    about="Picture what drives units and components of a model, and which live on the background.",
    example=f"{MODEL} --unit 3 --unit 17",
    earlier=earlier,
)


def _add(method: str) -> None:
    """The command of one method."""
    summary, example = SUMMARIES[method]

    def neurons(
        model: Annotated[
            str, typer.Argument(metavar="MODEL", help="The model, e.g. timm:resnet18.")
        ],
        options: Any,
    ) -> None:
        check_models(model)
        check_sets(getattr(options, "data", None))
        from counterlens.workflows.neurons.run import neurons as run_neurons

        result = run_neurons(model, method=method, options=options)
        finish(result, as_json=options.json, quiet=options.quiet)

    neurons.__doc__ = summary
    command(group, METHODS[method], name=method, example=example)(neurons)


for name in METHODS:
    _add(name)
