"""The commands around counterfactual generative networks of digits."""

from typing import Annotated

import typer

from counterlens.cli.options import Device, Json, Out, Quiet, Resume, Seed, app, finish

cgn = typer.Typer(
    help="Counterfactual generative networks on MNIST: train, import, generate, show, evaluate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(cgn, name="cgn")

Which = Annotated[str, typer.Argument(metavar="SET", help="coloured, double-coloured or wildlife.")]
Model = Annotated[
    str, typer.Argument(help="A folder seed-N of cgn train or cgn import, or zoo:NAME.")
]
Mnist = Annotated[
    str, typer.Option(help="Both splits of MNIST: known:mnist@ROOT or the shipped sample:mnist.")
]
Textures = Annotated[
    str | None,
    typer.Option(help="Textures of wildlife: pack:FILE.npz or DTD's folder. Default: drawn."),
]


@cgn.command()
def train(
    which: Which,
    kind: Annotated[str, typer.Option(help="cgn, or gan for the baseline.")] = "cgn",
    mnist: Mnist = "sample:mnist",
    textures: Textures = None,
    vgg: Annotated[
        str | None, typer.Option(help="Weights of VGG-16: vgg16-397923af.pth or vgg16.ckpt.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Trained side by side, e.g. 0-2 or 0,5.")] = "0",
    changes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, e.g. epochs=5. May be repeated."
        ),
    ] = [],
    out: Out = None,
    resume: Resume = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train generators that make shape, object and background apart."""
    from counterlens.workflows.cgn.settings import numbers_of
    from counterlens.workflows.cgn.train import train_cgn

    run = train_cgn(
        which,
        kind=kind,
        mnist=mnist,
        textures=textures,
        vgg_file=vgg,
        seeds=numbers_of(seeds),
        changes=changes,
        out=out,
        resume=resume,
        device=device,
        quiet=quiet,
    )
    finish(run, as_json=as_json, quiet=quiet)


@cgn.command("import")
def import_(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Checkpoints (.pth) of the reference CGN code."),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(help="The set they imitate. Default: by the path, e.g. cgn_wildlife_MNIST/…"),
    ] = None,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn checkpoints of the reference code into folders that the other commands open."""
    from counterlens.workflows.cgn.reference import import_cgn

    run = import_cgn(files, dataset=dataset, out=out, quiet=quiet)
    finish(run, as_json=as_json, quiet=quiet)


@cgn.command()
def generate(
    model: Model,
    count: Annotated[int, typer.Option(help="How many pictures.")] = 50_000,
    ratio: Annotated[int, typer.Option(help="Pictures per mask.")] = 1,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write counterfactual pictures with the label of their shape, in shards."""
    from counterlens.workflows.cgn.generate import generate as run_generate

    run = run_generate(
        model,
        count=count,
        ratio=ratio,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    finish(run, as_json=as_json, quiet=quiet)


@cgn.command()
def show(
    model: Model,
    count: Annotated[int, typer.Option(help="How many sheets.")] = 4,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw what each mechanism makes, and counterfactuals."""
    from counterlens.workflows.cgn.sheets import show as run_show

    run = run_show(
        model, count=count, out=out, resume=resume, seed=seed, device=device, quiet=quiet
    )
    finish(run, as_json=as_json, quiet=quiet)


@cgn.command()
def evaluate(
    which: Which,
    cgns: Annotated[
        list[str], typer.Option("--cgn", help="A run of cgn train or import, or a seed-N.")
    ],
    gans: Annotated[list[str], typer.Option("--gan", help="The same of the baseline.")] = [],
    mnist: Mnist = "sample:mnist",
    textures: Textures = None,
    count: Annotated[int, typer.Option(help="Made pictures per classifier.")] = 50_000,
    ratio: Annotated[int, typer.Option(help="Pictures per mask.")] = 1,
    originals: Annotated[
        int | None, typer.Option(help="Originals in the combined arms. Default: all.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of each classifier.")] = 10,
    sizes: Annotated[
        str, typer.Option(help="Run the ablation with these sizes instead, e.g. 10000,100000.")
    ] = "",
    ratios: Annotated[str, typer.Option(help="Ratios of the ablation.")] = "1,5,10,20",
    seen: Annotated[int, typer.Option(help="Test pictures whose heat maps are measured.")] = 10_000,
    tsne: Annotated[int, typer.Option(help="Pictures per t-SNE panel; 0 for none.")] = 3840,
    compared: Annotated[int, typer.Option(help="CGNs with which the other arms are trained.")] = 3,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train classifiers on originals and counterfactuals; measure what they look at."""
    from counterlens.workflows.cgn.evaluate import counts
    from counterlens.workflows.cgn.evaluate import evaluate as run_evaluate

    run = run_evaluate(
        which,
        cgns=cgns,
        gans=gans,
        mnist=mnist,
        textures=textures,
        count=count,
        ratio=ratio,
        originals=originals,
        epochs=epochs,
        sizes=counts(sizes, "--sizes"),
        ratios=counts(ratios, "--ratios"),
        seen=seen,
        tsne=tsne,
        compared=compared,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    finish(run, as_json=as_json, quiet=quiet)
