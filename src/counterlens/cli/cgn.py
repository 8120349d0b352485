"""The commands around counterfactual generative networks of digits and of photographs."""

from typing import Annotated

import typer

from counterlens.cli.commands import Choices, command
from counterlens.cli.options import app, finish
from counterlens.workflows.cgn.options import (
    CgnComposeOptions,
    CgnEvaluateOptions,
    CgnGenerateOptions,
    CgnImportOptions,
    CgnNaturalOptions,
    CgnShowOptions,
    CgnTrainOptions,
)

cgn = typer.Typer(
    cls=Choices,
    name="cgn",
    help="Counterfactual images: composed of photographs, or of digits by CGNs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(cgn)

Set = Annotated[str, typer.Argument(metavar="SET", help="coloured, double-coloured or wildlife.")]
Model = Annotated[
    str, typer.Argument(help="A folder seed-N of cgn train or cgn import, or zoo:NAME.")
]
Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Checkpoints (.pth) of the reference CGN code."),
]


Photographs = Annotated[
    str, typer.Argument(metavar="DATA", help="Labelled photographs: a folder or any other spec.")
]


@command(cgn, CgnComposeOptions, example="pets/ --mask masks/ --count 2000")
def compose(data: Photographs, options: CgnComposeOptions) -> None:
    """Compose counterfactual photographs: shape, texture and background of three images each."""
    from counterlens.workflows.cgn.compose import compose as run_compose

    result = run_compose(data, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


def _check(model: str) -> None:
    """Refuse a network that is not shipped before torch is imported."""
    from counterlens import zoo

    if model.startswith("zoo:"):
        zoo.cgn(model.removeprefix("zoo:"))


@command(cgn, CgnTrainOptions, example="wildlife --mnist known:mnist@data --seeds 0-2")
def train(which: Set, options: CgnTrainOptions) -> None:
    """Train generators whose shape, object and background are apart."""
    from counterlens.workflows.cgn.train import train_cgn

    result = train_cgn(which, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(cgn, CgnImportOptions, name="import", example="cgn_wildlife_MNIST/weights/ckp.pth")
def import_(files: Files, options: CgnImportOptions) -> None:
    """Turn checkpoints of the reference code into folders that the other commands open."""
    from counterlens.workflows.cgn.reference import import_cgn

    result = import_cgn(files, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(cgn, CgnGenerateOptions, example="zoo:wildlife-mnist-cgn --count 10000")
def generate(model: Model, options: CgnGenerateOptions) -> None:
    """Write counterfactual images with the label of their shape, in shards."""
    _check(model)
    from counterlens.workflows.cgn.generate import generate as run_generate

    result = run_generate(model, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(cgn, CgnShowOptions, example="zoo:wildlife-mnist-cgn")
def show(model: Model, options: CgnShowOptions) -> None:
    """Draw what each mechanism generates, and counterfactuals."""
    _check(model)
    from counterlens.workflows.cgn.sheets import show as run_show

    result = run_show(model, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(cgn, CgnEvaluateOptions, example="wildlife --cgn runs/cgn --gan runs/gan")
def evaluate(which: Set, options: CgnEvaluateOptions) -> None:
    """Train classifiers on originals and counterfactuals; measure what they look at."""
    from counterlens.workflows.cgn.evaluate import evaluate as run_evaluate

    result = run_evaluate(which, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


Factory = Annotated[
    str,
    typer.Argument(metavar="GENERATOR", help="FILE.py:FACTORY of a module G(noise, class)."),
]


@command(
    cgn,
    CgnNaturalOptions,
    name="train-natural",
    example="my_gan.py:make --salient u2netp.onnx --vgg vgg16.ckpt",
)
def train_natural(generator: Factory, options: CgnNaturalOptions) -> None:
    """Train shape, texture and background of photographs on a class-conditional generator."""
    from counterlens.workflows.cgn.natural import train_natural as run_natural

    result = run_natural(generator, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
