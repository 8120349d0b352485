"""The command that trains a classifier."""

from typing import Annotated

import typer

from counterlens.cli.commands import command
from counterlens.cli.options import app, check_models, check_sets, finish, refuse_unused
from counterlens.workflows.train.options import TrainOptions

HEADS = (
    "Heads of shape, texture and background: --data FOLDER --set start=MODEL "
    "--set counterfactuals=RUN/counterfactuals.jsonl."
)
FINETUNE = "Your network, or a shipped one, on your folder: --data FOLDER --set start=MODEL."


@command(app, TrainOptions, example="cifar10-plain-small --data photos/ --set epochs=30")
def train(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(help="finetune, heads, a recipe of --list, or a YAML file of settings."),
    ] = None,
    *,
    options: TrainOptions,
) -> None:
    """Train a classifier by a recipe: plain, robust, or RATIO."""
    if options.list_recipes:
        from counterlens.workflows.train.recipes import about

        print(f"{'finetune':32} {FINETUNE}")
        print(f"{'heads':32} {HEADS}")
        for name, line in about().items():
            print(f"{name:32} {line}")
        return
    if recipe is None or options.data is None:
        raise typer.BadParameter("expected RECIPE --data SPEC; list the recipes with --list")
    check_sets(options.data, options.out_data)
    if recipe in OWN:
        refuse_unused(context, recipe, "out_data", "max_minutes", "cache")
        OWN[recipe](options.data, options)
        return
    from counterlens.workflows.train.recipes import load

    load(recipe, options.changes)
    from counterlens.workflows.train.run import train as run_train

    result = run_train(recipe, options.data, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


def _finetune(data: str, options: TrainOptions) -> None:
    """The settings of --set are the options of finetune; start is its model."""
    from counterlens.workflows._shared.settings import nested

    settings = nested(options.changes)
    if "start" in settings:
        check_models(str(settings["start"]))
    from counterlens.workflows.train.finetune import START, finetune

    start = str(settings.pop("start", START))
    shared = ("out", "resume", "seed", "device", "quiet")
    keywords = {name: getattr(options, name) for name in shared}
    result = finetune(data, start, **settings, **keywords)
    finish(result, as_json=options.json, quiet=options.quiet)


def _heads(data: str, options: TrainOptions) -> None:
    """The settings of --set are the options of train_heads; start is its model."""
    from counterlens.workflows._shared.settings import nested

    settings = nested(options.changes)
    if "start" not in settings:
        raise typer.BadParameter("heads needs a pretrained model: --set start=MODEL")
    start = str(settings.pop("start"))
    check_models(start)
    from counterlens.workflows.train.heads import train_heads

    shared = ("out", "resume", "seed", "device", "quiet")
    keywords = {name: getattr(options, name) for name in shared}
    result = train_heads(data, start, **settings, **keywords)
    finish(result, as_json=options.json, quiet=options.quiet)


OWN = {"finetune": _finetune, "heads": _heads}
"""Trainings whose settings are options of their own."""
