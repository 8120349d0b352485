"""Train the models of photographs on one GPU, in several calls of minutes, on several machines.

    python tools/photo_sets.py SOURCE DATA                       the sets, from the packed ones
    python tools/make_photos.py train --data DATA --out OUT --lpips FILE --minutes 9
    python tools/make_photos.py keep --out OUT --parts PARTS --mib 15
    python tools/make_photos.py restore --out OUT --parts PARTS  on the next machine; then train

Stages, in the order of value; OUT/STAGE is a training run, OUT/log/STAGE.txt its output:

    autoencoder  128 pixels to 8 × 16 × 16 and back
    unet         text encoder and UNet on the latents of the autoencoder as exported, cached once
    decoder      the decoder alone, further; latents stay as they are, so the UNet fits as before
    plain        classifier of all 57 classes
    at, ratio    robust classifiers of eleven classes; RATIO begins as AT, as in make_zoo.py
    samples      20 pictures of each class, packed without loss, to be judged elsewhere
    few          the UNet distilled to chains of four steps (workflows/train/few_steps.py)

Repeat `train` to go on: what is finished stays, what was stopped continues. The number of updates
of a stage follows from `--seconds STAGE=S` (see SECONDS) and its speed, which a trial run of it
measures once, and is then fixed in OUT/steps.json; `--steps STAGE=N` states it. A stage that the
minutes end is continued by the next call. OUT/numbers.json has what was measured so far: PSNR and
LPIPS of held-out photographs, their accuracy, that under PGD, speeds.

`keep` writes what is worth keeping as parts of at most `--mib` MiB: of a finished stage the
exported model and the tables, of an unfinished one a light checkpoint (light_checkpoint.py).

A large transfer of the sets goes in parts as well, here of 45 MiB:

    python tools/parts.py cut PARTS 45 SOURCE/photos_*.npz
    python tools/parts.py join PARTS SOURCE

Planned cost on one H200 (counted operations; 160 to 200 TFLOP/s of bf16 reached by such networks):

    autoencoder   9.1 M weights,  95 GFLOP an image and update, 128 images: 12.2 TFLOP, and LPIPS
                  and critic a tenth of it: about 80 ms, 8 minutes give 6,000 updates
    latents       ten crops of 25,000 photographs, 7.3 GFLOP each: 1.8 PFLOP, 12 to 20 s, once
    unet         34.4 M weights,  20 GFLOP an image and update, 512 images: 10.2 TFLOP, 55 to 65 ms,
                  8 minutes give 8,000 updates, 4.1 M images, 160 epochs
    plain         6.4 M weights, 11.5 GFLOP an image: 120 epochs are 34 PFLOP, three minutes
    at           steps 3 and 5: 58 GFLOP an image: 50 epochs are 71 PFLOP, six to seven minutes
    ratio        20 epochs from AT's weights, steps 3 to 8 on both sides: 50 PFLOP, five minutes
    few          four halvings from 64 steps: 24 TFLOP an update in the first, 17 in the others, 512
                  images: 130 and 95 ms; 7 minutes give 1,000 updates each
    compiling    30 to 60 s a stage on a fresh machine, then from OUT/compiled
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterlens.errors import CounterlensError, InputError
from counterlens.runs import Run, read_object, write_json
from light_checkpoint import lighten, rebuild
from parts import cut, join

SECONDS = {
    "autoencoder": 330.0,
    "unet": 600.0,
    "decoder": 400.0,
    "plain": 170.0,
    "at": 300.0,
    "ratio": 280.0,
    "few": 420.0,
}
"""Time of each training, without compiling."""
RECIPES = {"plain": "photos-plain", "at": "photos-at", "ratio": "photos-ratio"}
GENERATOR = ("autoencoder", "unet", "decoder")
STAGES = ("autoencoder", "unet", "decoder", "plain", "at", "ratio", "samples", "few")
NEEDS = {"unet": "autoencoder", "decoder": "unet", "ratio": "at", "samples": "unet", "few": "unet"}
STAGE_OF = {"autoencoder": "vae", "unet": "unet", "decoder": "vae"}
"""The stage of a diffusion training that is a stage here."""
TABLES = {
    "autoencoder": "epochs_vae",
    "unet": "epochs_unet",
    "decoder": "epochs_vae",
    "few": "epochs_few",
}
"""Where the epochs of a stage stand, if not in `epochs`."""
TRIAL = 160
"""Updates of the run that measures a stage's speed."""
EACH = 20
"""Samples of each class."""
RESERVE = 0.94
"""Share of a stage's seconds for updates; the rest is for judgements and checkpoints."""


@dataclass(frozen=True)
class Job:
    """What a call was asked for.

    Args:
        until: when its minutes end, on the monotonic clock; None for no end.
    """

    data: Path
    out: Path
    device: str
    lpips: Path | None
    seconds: Mapping[str, float]
    steps: Mapping[str, float]
    changes: Mapping[str, tuple[str, ...]]
    until: float | None

    def minutes(self) -> float | None:
        """What is left of the time."""
        return None if self.until is None else (self.until - time.monotonic()) / 60

    def pack(self, name: str) -> str:
        """The spec of a set."""
        return f"{name}=pack:{self.data / name}.npz"


def train_stage(stage: str, job: Job, folder: Path, changes: Iterable[str], **limits: Any) -> Run:
    """A training of a stage in a folder, begun or continued."""
    from counterlens.workflows.train.diffusion import train_diffusion
    from counterlens.workflows.train.few_steps import train_few_steps
    from counterlens.workflows.train.run import train

    common: dict[str, Any] = {
        "changes": [*own_changes(stage, job), *changes], "out": folder, "device": job.device,
        "cache": job.out / "cache", "resume": (folder / "run.json").exists(), **limits,
    }  # fmt: skip
    if stage in GENERATOR:
        test = job.pack("photos-test")
        data = [job.pack("photos-train")]
        return train_diffusion(data, recipe="photos-diffusion", test=test, **common).run
    if stage == "few":
        teacher = str(generator_of(job.out))
        data = [job.pack("photos-train")]
        return train_few_steps(data, generator=teacher, recipe="photos-diffusion-few", **common).run
    coarse = "photos-train" if stage == "plain" else "photos-coarse-train"
    out_data = f"photos_out_train=pack:{job.data / 'photos_out_train'}.npz"
    more = {"out_data": out_data} if stage == "ratio" else {}
    return train(RECIPES[stage], job.pack(coarse), **common, **more).run


def own_changes(stage: str, job: Job) -> list[str]:
    """What a stage changes of its recipe, and what the call does."""
    if stage == "autoencoder":
        changes = ["unet.steps=0", "samples=0"]
        changes += [f"vae.lpips={job.lpips}"] if job.lpips else []
    elif stage == "unet":
        changes = ["vae.steps=0", "samples=0", f"start={job.out / 'autoencoder' / 'model'}"]
    elif stage == "decoder":
        changes = ["unet.steps=0", "samples=0", f"start={job.out / 'unet' / 'model'}",
                   "vae.learns=decoder", "vae.critic_from=0", "vae.lr=2e-4"]  # fmt: skip
        changes += [f"vae.lpips={job.lpips}"] if job.lpips else []
    elif stage == "few":
        changes = ["samples=0"]
    elif stage == "ratio":
        changes = [f"start={job.out / 'at' / 'model'}", "lr=0.12", "warmup=1"]
    else:
        changes = []
    return [*changes, *job.changes.get(stage, ())]


def length(stage: str, steps: int, per_epoch: int) -> list[str]:
    """The change that makes a stage so many updates long."""
    if stage in GENERATOR:
        return [f"{STAGE_OF[stage]}.steps={steps}"]
    if stage == "few":
        return [f"updates={steps}"]
    return [f"epochs={steps / per_epoch:.4f}"]


def rows_of(stage: str, run: Run) -> list[dict[str, Any]]:
    """The epochs of a stage's run."""
    return run.table(TABLES.get(stage, "epochs"))


def planned(stage: str, job: Job) -> tuple[int, int]:
    """Updates of a stage, and those of its epochs; measured and written down the first time."""
    file = job.out / "steps.json"
    known = read_object(file) if file.is_file() else {}
    if stage not in known:
        known[stage] = plan(stage, job)
        write_json(file, known)
    return int(known[stage]["steps"]), int(known[stage]["per_epoch"])


def plan(stage: str, job: Job) -> dict[str, Any]:
    """A trial run: its speed before and after the middle, where the work of an update changes.

    Where the number of updates is stated there is none.
    """
    if stage == "few":
        return plan_halvings(job)
    if stage in job.steps:
        per_epoch = 1 if stage in GENERATOR else epoch_of(stage, job)
        return {"steps": int(job.steps[stage]), "per_epoch": per_epoch}
    folder = job.out / "speed" / stage
    trial = [f"per_epoch={TRIAL // 8}"] if stage in GENERATOR else ["judge.every=1000"]
    per_epoch = TRIAL // 8
    if stage not in GENERATOR:
        per_epoch = epoch_of(stage, job)
    updates = max(TRIAL, 4 * per_epoch)
    run = train_stage(stage, job, folder, [*trial, *length(stage, updates, per_epoch)], quiet=True)
    rows = rows_of(stage, run)
    batch = batch_of(stage, job)
    half = len(rows) // 2
    best = [max(row["images_per_second"] for row in part) for part in (rows[:half], rows[half:])]
    update = sum(batch / rate for rate in best) / 2
    steps = RESERVE * job.seconds[stage] / update
    print(f"{stage}: {1000 * update:.1f} ms an update, {steps:.0f} updates", flush=True)
    return {"steps": max(1, round(steps)), "per_epoch": per_epoch, "seconds_an_update": update}


def plan_halvings(job: Job) -> dict[str, Any]:
    """Updates of each halving; a trial measures the first, whose teacher is guided, and another."""
    if "few" in job.steps:
        return {"steps": int(job.steps["few"]), "per_epoch": 1}
    trial = [f"per_epoch={TRIAL // 8}", f"updates={TRIAL // 2}"]
    run = train_stage("few", job, job.out / "speed" / "few", trial, quiet=True)
    rows, batch = rows_of("few", run), recipe_of("few", job).batch
    chains = list(dict.fromkeys(row["chain"] for row in rows))
    update = sum(
        batch / max(row["images_per_second"] for row in rows if row["chain"] == chain)
        for chain in chains
    )
    steps = RESERVE * job.seconds["few"] / update
    print(f"few: {1000 * update:.1f} ms for one of each halving, {steps:.0f} updates", flush=True)
    return {"steps": max(1, round(steps)), "per_epoch": 1, "seconds_an_update": update}


def epoch_of(stage: str, job: Job) -> int:
    """Updates of an epoch of a classifier."""
    from counterlens.data import open_set

    recipe = recipe_of(stage, job)
    images = open_set(job.pack("photos-train" if stage == "plain" else "photos-coarse-train"))
    return max(1, (len(images) - recipe.held_out) // recipe.batch)


def batch_of(stage: str, job: Job) -> int:
    """Images of an update."""
    recipe = recipe_of(stage, job)
    return int(getattr(recipe, STAGE_OF[stage]).batch if stage in GENERATOR else recipe.batch)


def recipe_of(stage: str, job: Job) -> Any:
    """The settings of a stage."""
    from counterlens.workflows._shared.settings import changed
    from counterlens.workflows.train import recipes
    from counterlens.workflows.train.recipe import DIFFUSION_RECIPES, FEW_STEP_RECIPES

    changes = own_changes(stage, job)
    if stage == "few":
        return changed(FEW_STEP_RECIPES["photos-diffusion-few"], changes)
    if stage in GENERATOR:
        return changed(DIFFUSION_RECIPES["photos-diffusion"], changes)
    return recipes.load(RECIPES[stage], changes)


def finished(stage: str, out: Path) -> bool:
    """Whether a stage is done."""
    return (out / stage / "DONE").exists()


def generator_of(out: Path) -> Path:
    """The generator as far as it is: with the decoder that was trained further, if it was."""
    return out / ("decoder" if finished("decoder", out) else "unet") / "model"


def work(stage: str, job: Job) -> bool:
    """A stage, or what the time allows of it; whether it is done."""
    if finished(stage, job.out):
        return True
    needed = NEEDS.get(stage)
    if needed and not finished(needed, job.out):
        print(f"{stage}: waits for {needed}", flush=True)
        return False
    if stage == "samples":
        return draw_samples(job)
    steps, per_epoch = planned(stage, job)
    left = job.minutes()
    if left is not None and left <= 0:
        return False
    run = train_stage(
        stage, job, job.out / stage, length(stage, steps, per_epoch), max_minutes=left
    )
    return run.done


def draw_samples(job: Job) -> bool:
    """Samples of each class, without loss, and a sheet of ten of each."""
    from counterlens.classifier import pick_device
    from counterlens.data.sources.packed import write_pack
    from counterlens.data.synthetic import captions
    from counterlens.generators.diffusion import model as latent
    from counterlens.workflows.train.diffusion_quality import GUIDANCE, STEPS, samples, sheet

    model = latent.load(generator_of(job.out), device=pick_device(job.device))
    classes = tuple((model.card or {})["classes"])
    how = f"guidance {GUIDANCE:g}, {STEPS} steps"
    run = Run.create(job.out / "samples", "samples", {"each": EACH, "how": how}, resume=True)
    images = samples(model, [captions.prompt(name) for name in classes for _ in range(EACH)])
    sheet(run, "samples", images, EACH, len(classes))
    pixels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    labels = [k for k in range(len(classes)) for _ in range(EACH)]
    write_pack(run.folder / "samples.npz", list(pixels), labels, classes)
    run.finish()
    return True


def report(out: Path) -> None:
    """Gather what was measured so far as OUT/numbers.json."""
    known: dict[str, Any] = {}
    for stage in SECONDS:
        if not (out / stage / "run.json").exists():
            continue
        rows = rows_of(stage, Run(out / stage))
        judged = [row for row in rows if any(key.startswith("held_out") for key in row)]
        known[stage] = {
            "done": finished(stage, out),
            **({"updates": rows[-1]["step"], "seconds": rows[-1]["seconds"],
                "images_per_second": max(row["images_per_second"] for row in rows)}
               if rows else {}),
            **({k: v for k, v in judged[-1].items() if k.startswith("held_out")}
               if judged else {}),
        }  # fmt: skip
    write_json(out / "numbers.json", known)
    print(json.dumps(known, indent=1), flush=True)


def train_all(job: Job, stages: Iterable[str]) -> int:
    """All stages in turn; 0 when each is done, 3 when time ended before."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str((job.out / "compiled").resolve()))
    done = True
    for stage in stages:
        left = job.minutes()
        if left is not None and left <= 0:
            print(f"{stage}: no time left", flush=True)
            done = False
            break
        began = time.monotonic()
        done = work(stage, job) and done
        state = "done" if finished(stage, job.out) else "to be continued"
        print(f"{stage}: {state} after {time.monotonic() - began:.0f} s", flush=True)
    report(job.out)
    return 0 if done else 3


def keep(out: Path, parts: Path, mib: float) -> None:
    """Write each stage that was begun as parts; one that is kept as finished stays."""
    for stage in STAGES:
        folder = out / stage
        if not (folder / "run.json").exists():
            continue
        over = parts / f"{stage}.parts.json"
        if over.exists():
            over.unlink()
            for part in parts.glob(f"{stage}.part[0-9]*"):
                part.unlink()
        for path in cut(worth_keeping(stage, out), parts, name=stage, mib=mib):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    small = {name: out / name for name in ("steps.json", "numbers.json") if (out / name).is_file()}
    if small:
        cut(small, parts, name="plan", mib=mib)


def worth_keeping(stage: str, out: Path) -> dict[str, Path]:
    """The files of a stage: its model, or its light checkpoint if unfinished, and what is small."""
    folder, done = out / stage, finished(stage, out)
    chosen = {}
    left_out = ("state", "events") if done else ("state", "events", "model")
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] not in left_out:
            chosen[f"{stage}/{inside}"] = path
    if not done:
        for checkpoint in sorted(folder.glob("state/**/checkpoint.pt")):
            light = checkpoint.with_name("light.pt")
            lighten(checkpoint, light)
            chosen[f"{stage}/{light.relative_to(folder)}"] = light
    return chosen


def restore(out: Path, parts: Path) -> None:
    """Unpack what was kept; stages that are here already stay as they are."""
    scratch = out / "restored"
    join(parts, scratch)
    for entry in sorted(scratch.iterdir()):
        if (out / entry.name).exists():
            print(f"{entry.name}: is there already, left as it is")
            continue
        entry.rename(out / entry.name)
        for light in (out / entry.name).glob("state/**/light.pt"):
            rebuild(light, light.with_name("checkpoint.pt"))
            light.unlink()
        print(f"{entry.name}: restored")


def pairs(given: Iterable[str], kind: Callable[[str], Any], option: str) -> dict[str, Any]:
    """STAGE=VALUE texts as a dictionary."""
    out = {}
    for text in given:
        stage, equals, value = text.partition("=")
        if stage not in STAGES or not equals:
            raise InputError(f"got {option} {text}, expected STAGE=…, a stage of {STAGES}.")
        try:
            out[stage] = kind(value)
        except ValueError:
            raise InputError(f"got {option} {text}, expected a number after the =.") from None
    return out


def job_of(given: argparse.Namespace) -> Job:
    """The arguments as a job."""
    changes: dict[str, tuple[str, ...]] = {}
    for text in given.set:
        stage, colon, change = text.partition(":")
        if stage not in SECONDS or not colon:
            raise InputError(f"got --set {text}, expected STAGE:KEY=VALUE.")
        changes[stage] = (*changes.get(stage, ()), change)
    seconds = {**SECONDS, **pairs(given.seconds, float, "--seconds")}
    until = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    steps = pairs(given.steps, int, "--steps")
    return Job(
        given.data, given.out, given.device, given.lpips, seconds, steps, changes, until
    )  # fmt: skip


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train stages, or go on with them")
    training.add_argument("--data", type=Path, required=True, help="of photo_sets.py")
    training.add_argument("--only", nargs="+", choices=STAGES, default=STAGES)
    training.add_argument("--lpips", type=Path, help="weights of LPIPS, for the autoencoder")
    training.add_argument("--minutes", type=float, help="stop after so long")
    training.add_argument("--seconds", nargs="+", default=[], metavar="STAGE=S")
    training.add_argument("--steps", nargs="+", default=[], metavar="STAGE=N")
    training.add_argument("--set", action="append", default=[], metavar="STAGE:KEY=VALUE")
    training.add_argument("--device", default="auto")
    keeping = commands.add_parser("keep", help="write what is worth keeping as parts")
    keeping.add_argument("--mib", type=float, default=15, help="most MiB of a part")
    restoring = commands.add_parser("restore", help="unpack what was kept")
    for one in (keeping, restoring):
        one.add_argument("--parts", type=Path, required=True)
    for one in (training, keeping, restoring):
        one.add_argument("--out", type=Path, required=True)
    return parser


def main() -> int:
    """The exit code: 0 done, 3 time ended, 2 bad input."""
    given = arguments().parse_args()
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        if given.command == "keep":
            keep(given.out, given.parts, given.mib)
        elif given.command == "restore":
            restore(given.out, given.parts)
        else:
            return train_all(job_of(given), given.only)
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
