"""Golden runs: every command once on what is shipped, and whether two sets of them are equal.

    .venv/bin/python tools/golden.py run OUT [--only NAME...] [--again] [--list]
    .venv/bin/python tools/golden.py compare BEFORE AFTER [--only NAME...] [--renames FILE]
                                                          [--manifests]

`run` writes OUT/NAME/ for each row of COMMANDS: its run folder, stdout.txt, stderr.txt and
exit.txt. Rows that ended well before are left as they are; --again runs them anew. Every command is
run from OUT with relative paths, on the CPU, with one thread and a fixed seed, so that two sets can
be compared wherever they lie. COMMANDS is the one place to edit when options are renamed.

`compare` prints one line for each difference and exits with 1 if there is one. Numbers are compared
as they are written, digit for digit; arrays, pictures and weights by their hash. Ignored: what
TIMES, MOMENT, PLACES, PRESENT and CHANCE name. FILE lists intended renames, one on a
line, `old -> new`, with `#` for comments:

    old -> new              a key of a JSON object, or one part of a key with dots, in every file
    file: old -> new        a file or folder, by its path below OUT/NAME or by one part of the path
    text: old -> new        words inside texts, wherever they stand
    drop: key               a key that is gone, or new, on purpose
"""

import argparse
import hashlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLAIN, RATIO = "zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"
DIGITS = "--mnist pack:inputs/mnist-train.npz,pack:inputs/mnist.npz"
CGN = (
    "--set epochs=1 --set width=4 --set critic_width=8 --set examined=2 "
    "--set digit_classifier_updates=1"
)
NET = (
    "--data pack:inputs/train.npz --out-data sample:textures --cache cache --set size=16 "
    "--set architecture.widths=[4,4,4,4] --set epochs=2 --set batch=20 --set out_batch=20 "
    "--set held_out=20 --set warmup=0 --set judge.every=1 --set judge.steps=2 "
    "--set judge.probe_every=2"
)
NEAR = "--set near.steps=2"
FAR = "--set far.steps=2"
TEXTS = "--data pack:inputs/train.npz --cache cache --set held_out=20 --set shares=[1.0]"
PAIR = (
    "--set variants=2 --set merges=60 --set per_epoch=3 --set steps=6 --set batch=16 "
    "--set warmup=1 --set sizes.width=16 --set sizes.layers=1 --set sizes.text=16 "
    "--set sizes.text_layers=1 --set sizes.heads=2 --set sizes.patch=8"
)
PAINTER = (
    "--set shape.vae=[8,8] --set shape.unet=[8,16] --set shape.heads=2 --set shape.text=16 "
    "--set shape.layers=1 --set shape.merges=60 --set variants=2 --set per_epoch=2 "
    "--set samples=10 --set side=16 --set vae.steps=4 --set vae.batch=8 --set vae.warmup=1 "
    "--set unet.steps=4 --set unet.batch=8 --set unet.warmup=1"
)
OUTSIDE = ("figure5", "figure7")
PHOTO = "inputs/photo.png"
TINY = "train-plain/run/model sample:cifar10 --attack-points 8 --limit 60 --batch 30 --anyway"

# name: command line. {to} becomes --out NAME/run and {run} adds device, seed and --quiet to it.
# NAME/... is what an earlier row left; rows that a row names are run before it.
COMMANDS: dict[str, str] = {
    "version": "counterlens --version",
    "zoo": "counterlens zoo",
    "zoo-json": "counterlens zoo --json",
    "zoo-card": "counterlens zoo cifar10-ratio-small --json",
    "zoo-card-text": "counterlens zoo cifar10-ratio-0.25",
    "zoo-diffusion": "counterlens zoo cifar10-diffusion --json",
    "app": "counterlens app inputs --port 70000 --no-browser",  # a server that starts never ends
    # measure
    "audit": f"counterlens audit {PLAIN} sample:cifar10 --limit 200 --batch 50 --json "
    '--require "accuracy.top1>=0.5" {run}',
    "audit-two": f"counterlens audit {PLAIN} {RATIO} sample:cifar10 --limit 120 --batch 40 "
    "--calibrate sample:cifar10-calibration --ood noise:uniform --ood noise:smooth "
    "--ood sample:textures --flips 4 "
    '--about "zoo:cifar10-plain-small: family=small, training=plain" {run}',
    "audit-gate": f"counterlens audit {PLAIN} sample:cifar10 --limit 60 --batch 30 "
    '--require "accuracy.top1>=0.999" {run}',
    "audit-fast": f"counterlens audit {RATIO} sample:cifar10 --attack l2:0.5 "
    "--attack-version fast --attack-points 1 --limit 60 --batch 30 {run}",
    "audit-standard": f"counterlens audit {PLAIN} sample:cifar10 --attack l2:0.5 "
    "--attack-points 3 --limit 60 --batch 30 {run}",
    "audit-plus": f"counterlens audit {TINY} --attack linf:2/255 --attack-version plus {{run}}",
    "audit-rand": f"counterlens audit {TINY} --attack l2:0.1 --attack-version rand {{run}}",
    "audit-ratio-era": f"counterlens audit {TINY} --attack linf:2/255 "
    "--attack-version ratio-era {run}",
    "audit-l1": f"counterlens audit {TINY} --attack l1:2 --attack-version fast {{run}}",
    "audit-ood-attack": f"counterlens audit {TINY} --ood sample:textures --ood-attack l2:1.0 "
    "{run}",
    "audit-radius": f"counterlens audit {TINY} --radius-curve l2:3 {{run}}",
    "audit-zero-shot": "counterlens audit zoo:cifar10-clip sample:cifar10 --limit 100 --batch 50 "
    "{run}",
    "audit-frozen": f"counterlens audit {RATIO} curate-freeze/run --batch 10 --anyway {{run}}",
    "audit-trained": "counterlens audit train-plain/run/model sample:cifar10 --limit 60 "
    "--batch 30 --anyway {run}",
    "doctor": f"counterlens doctor {PLAIN} sample:cifar10 {{run}}",
    "doctor-json": f"counterlens doctor {RATIO} --json {{run}}",
    "compare": "counterlens compare audit-fast/run audit-standard/run {to} -q",
    "ratchet": "counterlens ratchet ratchet/failures.json audit/run --add wrong {to} -q",
    "compare-json": "counterlens compare audit/run audit-trained/run --json {to} -q",
    "report": "counterlens report audit/run",
    "evidence": "counterlens evidence audit/run --folder evidence",
    "export": "counterlens export audit/run model-card --write-to export/README.md",
    # explain
    "explain-pixel": f"counterlens explain {RATIO} {PHOTO} sample:cifar10#3 --target cat "
    f"--target predicted --with {PLAIN} --radius 0.5 --radius 1.5 --steps 6 {{run}}",
    "explain-pixel-linf": f"counterlens explain pixel {RATIO} sample:cifar10#0:2 --target near "
    "--norm linf --radius 8/255 --steps 4 {run}",
    "explain-pixel-l1.5": f"counterlens explain {RATIO} sample:cifar10#0 --target random "
    "--norm l1.5 --radius 6 --steps 4 {run}",
    "explain-cam": f"counterlens explain cam {PLAIN} {PHOTO} {{run}}",
    "explain-colour": f"counterlens explain colour {PLAIN} {PHOTO} {{run}}",
    "explain-frame": f"counterlens explain frame {PLAIN} {PHOTO} {{run}}",
    "explain-diffusion": f"counterlens explain {PLAIN} {PHOTO} --target dog --method diffusion "
    f"--with {RATIO} --steps 4 --updates 2 --rounds 1 {{run}}",
    "explain-diffusion-mask": f"counterlens explain diffusion {PLAIN} {PHOTO} --target dog "
    '--mask inputs/mask.png --caption "a photograph of a cat" --reference '
    "--sampling-steps 4 --updates 2 --rounds 0 {run}",
    "explain-dvce": f"counterlens explain dvce {PLAIN} {PHOTO} --target dog "
    f"--robust {RATIO} --with {RATIO} --sampling-steps 6 {{run}}",
    "explain-worst": "counterlens explain audit/run --worst 2 --train sample:cifar10-calibration "
    "--radius 0.5 --steps 2 {run}",
    "explain-evaluate": f"counterlens explain {PLAIN} sample:cifar10#0:12 --evaluate --arm pixel "
    f"--arm pixel-robust --robust {RATIO} --with {RATIO} --real pack:inputs/test.npz --targets 1 "
    "--steps 2 --batch 12 {run}",
    "explain-evaluate-diffusion": f"counterlens explain evaluate {PLAIN} sample:cifar10#0:2 "
    f"--arm prompt-to-prompt --arm diffusion --with {RATIO} --updates 1 --batch 2 "
    "--generator train-diffusion/run/model {run}",
    # discover
    "repair": f"counterlens repair {PLAIN} --fix pack:inputs/fix.npz --check pack:inputs/check.npz "
    "--groups column:side --with temperature,prior,erase,group-weights {run}",
    "disagree": f"counterlens disagree {PLAIN} {RATIO} --class cat --count 1 --updates 2 "
    '--sampling-steps 2 --require "disagree.first.real.high<=0.9" --verify pack:inputs/test.npz '
    "--with zoo:cifar10-clip {run}",
    "disagree-persist": f"counterlens disagree zoo:cifar10-clip {PLAIN} --class cat --class dog "
    f"--count 1 --updates 1 --sampling-steps 2 --score logarithms --persist {RATIO} "
    "--set text_rate=0.02 {run}",
    "neurons-pixel": f"counterlens neurons show {PLAIN} --unit 3 --unit 5 --logit dog "
    f"--image {PHOTO} --steps 4 {{run}}",
    "neurons-diffusion": f"counterlens neurons diffusion {PLAIN} --unit 3 --logit dog "
    "--count 1 --similar 1 --words inputs/words.txt --data pack:inputs/test.npz --set updates=1 "
    "--set steps=2 {run}",
    "neurons-npca": f"counterlens neurons {PLAIN} --npca cat:0 --npca dog --data sample:cifar10 "
    "--limit 200 {run}",
    "neurons-npca-diffusion": f"counterlens neurons npca {PLAIN} --npca cat:0 "
    "--data sample:cifar10 --limit 100 {run}",
    "neurons-spurious": f"counterlens neurons spurious {PLAIN} --data sample:cifar10 --mask cam "
    "--limit 60 {run}",
    "neurons-counterfactual": f"counterlens neurons counterfactual {PLAIN} --unit 3 "
    f"--image {PHOTO} --mask inputs/mask.png --set updates=1 --set steps=2 {{run}}",
    # curate
    "curate-classes": f"counterlens curate classes sample:cifar10 --model {PLAIN} --least 20 "
    "{to} --device cpu -q",
    "curate-adversarial": f"counterlens curate adversarial sample:cifar10 --filter {PLAIN} "
    "--confidence 0.5 --confusion 3 --shortlist 6 --against sample:cifar10-calibration --tags 3 "
    "--limit 300 --licence CC0 --shard 100 {run}",
    "curate-adversarial-mean": f"counterlens curate adversarial sample:cifar10 --filter {PLAIN} "
    f"--filter {RATIO} --classes curate-classes/run/classes.txt --confidence 0.9 --per mean "
    "--bits -1 --cosine 0 --tags 0 --limit 200 --json {run}",
    "curate-ood": f"counterlens curate ood sample:textures --filter {PLAIN} --inside "
    "sample:cifar10 --confidence 0.4 --per-answer 3 --shortlist 6 --limit 120 {run}",
    "curate-triage": f"counterlens curate triage sample:cifar10 --model {PLAIN} --model {RATIO} "
    "--most 5 --explained 1 --limit 200 {run}",
    "curate-labels": f"counterlens curate labels sample:cifar10 --model {PLAIN} --limit 300 "
    "--most 6 --features features {to} --device cpu -q",
    "curate-labels-review": "counterlens curate review curate-labels/run --reviewer ann --json",
    "curate-relabel": "counterlens curate relabel curate-labels/run --to corrected.csv --json",
    "curate-review": "counterlens curate review curate-adversarial/run --reviewer ann --json",
    "curate-review-second": "counterlens curate review curate-adversarial/run --reviewer bob "
    "--json",
    "curate-review-adjudicate": "counterlens curate review curate-adversarial/run --reviewer eve "
    "--adjudicate --json",
    "curate-review-export": "counterlens curate review curate-adversarial/run "
    "--export curate-review-export/verdicts.jsonl --sheet curate-review-export/sheet.html --json",
    "curate-review-take": "counterlens curate review curate-adversarial/run "
    "--take curate-review-export/verdicts.jsonl --status --json",
    "curate-freeze": f"counterlens curate freeze curate-adversarial/run --held-out {RATIO} "
    "--json {run}",
    "curate-freeze-shards": "counterlens curate freeze curate-ood/run --format webdataset "
    f"--held-out {RATIO} --unreviewed {{run}}",
    # repair
    "outdata": "counterlens outdata sample:cifar10 sample:textures --drop stripes --limit 60 {run}",
    "outdata-copies": f"counterlens outdata pack:inputs/train.npz sample:cifar10-calibration "
    f"--model {RATIO} --keep ship --most-bits 4 --typical 0.3 --limit 100 --json {{run}}",
    "train-list": "counterlens train --list",
    "train-plain": f"counterlens train cifar10-plain-small {NET} {{run}}",
    "train-oe": f"counterlens train cifar10-oe {NET} {{run}}",
    "train-acet": f"counterlens train cifar10-acet {NET} {FAR} {{run}}",
    "train-at": f"counterlens train cifar10-at-0.25 {NET} {NEAR} {{run}}",
    "train-half-at": f"counterlens train cifar10-half-at-0.5 {NET} {NEAR} {{run}}",
    "train-trades": f"counterlens train cifar10-trades-0.5 {NET} {NEAR} {{run}}",
    "train-ratio": f"counterlens train cifar10-ratio-small {NET} {NEAR} {FAR} --json {{run}}",
    "train-three-part": f"counterlens train cifar10-three-part-ratio-0.5 {NET} {NEAR} {FAR} "
    "{run}",
    "train-noise": f"counterlens train cifar10-noise-judge {NET} {{run}}",
    "train-fgsm": f"counterlens train nae-resnet18-fgsm {NET} {{run}}",
    "train-start": f"counterlens train cifar10-ratio-0.25-anneal {NET} {NEAR} {FAR} "
    "--set start=train-ratio/run/model {run}",
    "train-clip": f"counterlens.workflows.train.clip {TEXTS} {PAIR} --test pack:inputs/test.npz "
    "{run}",
    "train-diffusion": f"counterlens.workflows.train.diffusion {TEXTS} {PAINTER} "
    f"--test pack:inputs/test.npz --judge {PLAIN} {{run}}",
    "diffusion-quality": "counterlens.workflows.train.diffusion_quality train-diffusion/run/model "
    f"--judge {PLAIN} --test pack:inputs/test.npz --train pack:inputs/train.npz --count 10 {{run}}",
    # counterfactual generative networks
    "cgn-train": f"counterlens cgn train double-coloured {DIGITS} --vgg inputs/vgg.safetensors "
    f"--seeds 0 {CGN} --set attempts=2 {{to}} --device cpu -q",
    "cgn-train-wildlife": f"counterlens cgn train wildlife {DIGITS} --seeds 0,1 {CGN} "
    "--vgg inputs/vgg.safetensors --set attempts=1 {to} --device cpu -q",
    "cgn-train-gan": f"counterlens cgn train double-coloured --kind gan {DIGITS} --seeds 0 {CGN} "
    "{to} --device cpu -q",
    "cgn-import": "counterlens cgn import inputs/reference-cgn.pth --dataset wildlife {to} -q",
    "cgn-show-import": "counterlens cgn show cgn-import/run/seed-0 --sheets 1 {run}",
    "cgn-generate": "counterlens cgn generate zoo:coloured-mnist-cgn --count 200 --ratio 2 {run}",
    "cgn-compose": "counterlens cgn compose pack:inputs/masked.npz --count 20 --size 64 "
    "--mask key:mask {run}",
    "cgn-train-natural": "counterlens cgn train-natural inputs/generator.py:make --salient "
    "inputs/salient.onnx --iterations 3 --images 2 {run}",
    "cgn-show": "counterlens cgn show zoo:wildlife-mnist-cgn --sheets 1 {run}",
    "cgn-evaluate": "counterlens cgn evaluate double-coloured --cgn cgn-train/run "
    f"--gan cgn-train-gan/run {DIGITS} --count 100 --epochs 1 --seen 10 --tsne 20 {{run}}",
    "cgn-ablation": f"counterlens cgn evaluate double-coloured --cgn cgn-train/run {DIGITS} "
    "--sizes 200,400 --ratios 1,2 --epochs 1 --seen 10 {run}",
    # papers
    "reproduce-table": "counterlens reproduce table ratio-table1 {run}",
    "reproduce-table-rerun": "counterlens reproduce table ratio-table1 --rerun cifar10-plain-small "
    "--data pack:inputs/test.npz --ood noise:smooth --calibrate pack:inputs/train.npz --points 1 "
    "{run}",
    **{
        f"reproduce-ratio-{name}": f"counterlens reproduce figure ratio-{name} "
        f"--data sample:cifar10#0:120 {'--ood noise:blobs' * (name in OUTSIDE)} --shown 2 "
        "--steps 3 --radius 0.5 --radius 1.0 {run}"
        for name in ("figure1", "figure2", "figure5", "figure7", "figure13")
    },
    "reproduce-digin-figure13": f"counterlens reproduce figure digin-figure13 --model {PLAIN} "
    "--shown 1 {run}",
    # what is refused
    "refused-model": "counterlens audit zoo:nothing sample:cifar10 {run}",
    "refused-option": f"counterlens explain {PLAIN} {PHOTO} --worst 2 {{run}}",
}
TYPED = {
    "curate-labels-review": "r wrong #cat\n" + "a\n" * 5,
    "curate-review": "a\nr blurred #background\n" + "a\n" * 4,
    "curate-review-second": "a\na\nr\n" + "a\n" * 3,
    "curate-review-adjudicate": "a settled\nr\n",
}
"""What is typed into a command that asks."""
AFTER = {
    "curate-labels-review": ("curate-labels",),
    "curate-relabel": ("curate-labels-review",),
    "curate-review-second": ("curate-review",),
    "curate-review-adjudicate": ("curate-review-second",),
    "curate-review-export": ("curate-review-adjudicate",),
    "curate-freeze": ("curate-review-take",),
}
"""Rows to run before a row although its command line does not name them."""
EXITS = {"app": 2, "audit-gate": 1, "refused-model": 2, "refused-option": 2, "repair": 4}
"""How a command ends where it does not end with 0."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "COLUMNS": "100",
    "COUNTERLENS_CACHE": "cache",
}

# ------------------------------------------------------------------------------------------- run


def run(out: Path, only: Sequence[str], again: bool) -> int:
    """Run rows of COMMANDS into `out`; the number of those that did not end as they should."""
    unknown = [name for name in only if name not in COMMANDS]
    if unknown:
        print(f"no command {unknown[0]!r}, see --list", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    os.environ.update(ENVIRONMENT)
    make_inputs(Path("inputs"))
    _preload()
    failed, began, total = [], time.monotonic(), 0.0
    wanted = ordered(only or list(COMMANDS))
    for name in wanted:
        if ended_well(Path(name)) and not (again and (not only or name in only)):
            continue
        start = time.monotonic()
        code, worked = _one(name)
        verdict = "ok" if code == EXITS.get(name, 0) else f"FAILED, exit code {code}"
        took = time.monotonic() - start
        print(f"{took:7.1f} s, {worked:6.1f} s of work  {name}: {verdict}", flush=True)
        total += worked
        if verdict != "ok":
            failed.append(name)
    took = time.monotonic() - began
    print(f"{took:7.1f} s, {total:6.1f} s of work  {len(wanted)} commands, {len(failed)} failed")
    return len(failed)


def ended_well(folder: Path) -> bool:
    """Whether a row was run and ended as it should."""
    file = folder / "exit.txt"
    return file.is_file() and int(file.read_text()) == EXITS.get(folder.name, 0)


def ordered(names: Iterable[str]) -> list[str]:
    """The rows and all that they need, each after what it needs."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            for other in needs(name):
                visit(other)
            found[name] = None

    for name in names:
        visit(name)
    return list(found)


def needs(name: str) -> list[str]:
    """Rows whose output a row reads."""
    named = re.findall(r"(?<![\w/:-])([\w.-]+)/", COMMANDS[name])
    others = [other for other in named if other in COMMANDS and other != name]
    return [*dict.fromkeys([*others, *AFTER.get(name, ())])]


def words_of(name: str) -> list[str]:
    """The command line of a row, cut into words."""
    to = f"--out {name}/run"
    line = COMMANDS[name].replace("{to}", to)
    return shlex.split(line.replace("{run}", f"{to} --device cpu --seed 0 --quiet"))


def _one(name: str) -> tuple[int, float]:
    """Run one row in a child of this process; its exit code and processor time."""
    folder = Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "stdin.txt").write_text(TYPED.get(name, ""), encoding="utf-8")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _child(folder, words_of(name))
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    (folder / "stdin.txt").unlink()
    (folder / "exit.txt").write_text(f"{code}\n", encoding="utf-8")
    return code, used.ru_utime + used.ru_stime


def _child(folder: Path, words: Sequence[str]) -> None:
    """Become `python -m words`, with its streams in the folder."""
    for number, name, flags in (
        (0, "stdin.txt", os.O_RDONLY),
        (1, "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(folder / name, flags, 0o644), number)
    code = 70
    try:
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _preload() -> None:
    """Import the heavy libraries once; the children inherit them. Nothing of the package."""
    for library in ("torch", "torchvision", "timm", "sklearn.metrics", "diffusers", "transformers"):
        try:
            __import__(library)
        except ImportError:
            continue
    import torch

    torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------- inputs


def make_inputs(folder: Path) -> None:
    """The few files that commands need and that are not shipped, cut out of what is shipped."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for sample, name, count in (
        ("mnist-train", "mnist-train", 120),
        ("mnist", "mnist", 100),
        ("cifar10-calibration", "train", 120),
        ("cifar10", "test", 60),
    ):
        _cut(sample, folder / f"{name}.npz", count)
    _cut("cifar10", folder / "masked.npz", 40, masks=True)
    _cut("cifar10-calibration", folder / "fix.npz", 200, side=True)
    _cut("cifar10", folder / "check.npz", 200, side=True)
    with np.load(folder / "test.npz") as test:
        first, end = test["offsets"][:2]
        photo = Image.open(io.BytesIO(test["encoded"][first:end].tobytes())).convert("RGB")
    photo.resize((48, 40), Image.Resampling.BICUBIC).save(folder / "photo.png")
    mask = np.zeros((40, 48), np.uint8)
    mask[8:32, 10:38] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    (folder / "words.txt").write_text("striped\nwhiskers\nwheels\n", encoding="utf-8")
    _narrow_vgg(folder / "vgg.safetensors")
    _reference_cgn(folder / "reference-cgn.pth")
    (folder / "generator.py").write_text(_GENERATOR, encoding="utf-8")
    _salient(folder / "salient.onnx")


def _cut(sample: str, path: Path, count: int, *, side: bool = False, masks: bool = False) -> None:
    """The first pictures of a shipped sample, as a packed set.

    Args:
        side: add a column of groups.
        masks: add masks of their middles.
    """
    from importlib import resources

    import numpy as np

    file = resources.files("counterlens") / "zoo" / "samples" / f"{sample}.npz"
    with np.load(io.BytesIO(file.read_bytes())) as whole:
        end = int(whole["offsets"][count])
        parts = {
            "encoded": whole["encoded"][:end],
            "offsets": whole["offsets"][: count + 1],
            "labels": whole["labels"][:count],
            "classes": whole["classes"],
        }
    if side:
        parts["side"] = np.arange(count) // 7 % 2
    if masks:
        parts["mask"] = np.zeros((count, 32, 32), np.uint8)
        parts["mask"][:, 8:24, 8:24] = 1
    with path.open("wb") as out, zipfile.ZipFile(out, "w") as archive:
        for key, value in parts.items():  # as numpy.savez, without a time stamp
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w") as member:
                np.lib.format.write_array(member, value, allow_pickle=False)


_GENERATOR = """\
import torch
from torch import nn


class Tiny(nn.Module):
    noise, classes = 4, ["a", "b", "c"]

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.start = nn.Embedding(3, 4), nn.Linear(8, 48)

    def forward(self, u, y):
        x = self.start(torch.cat([u, self.embed(y)], 1)).view(-1, 3, 4, 4).sigmoid()
        return nn.functional.interpolate(x, (32, 32), mode="bilinear")


def make():
    return Tiny()
"""


def _salient(path: Path) -> None:
    """A segmenter of one 1 × 1 convolution, as ONNX: machinery alone."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape = [1, 3, 32, 32]
    weight = numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "weight")
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["mask"]),
    ]
    given = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
    out = helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 1, 32, 32])
    graph = helper.make_graph(nodes, "salient", [given], [out], [weight])
    opset = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def _narrow_vgg(path: Path) -> None:
    """A VGG-16 of two channels with random weights: machinery alone."""
    import torch
    from safetensors.torch import save_file

    rng, before = torch.Generator().manual_seed(0), 3
    state = {}
    for layer in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21):
        state[f"features.{layer}.weight"] = torch.randn(2, before, 3, 3, generator=rng) / 3
        state[f"features.{layer}.bias"] = torch.zeros(2)
        before = 2
    save_file(state, path)


def _reference_cgn(path: Path) -> None:
    """A narrow CGN with random weights, under the names of the reference code's checkpoints."""
    import torch

    rng = torch.Generator().manual_seed(0)
    state = {"label_emb.weight": torch.randn(10, 10, generator=rng)}

    def add(name: str, *shape: int, bias: bool = False) -> None:
        state[f"{name}.weight"] = torch.randn(*shape, generator=rng) / 3
        if bias:
            state[f"{name}.bias"] = torch.randn(shape[0], generator=rng) / 3

    def add_norm(name: str, channels: int) -> None:
        add(name, channels, bias=True)
        state[f"{name}.running_mean"] = torch.zeros(channels)
        state[f"{name}.running_var"] = torch.ones(channels)
        state[f"{name}.num_batches_tracked"] = torch.tensor(1)

    for net, layers in (
        ("f_shape", ((4, 4, 8), (9, 1, 4))),
        ("f_text1", ((3, 8, 8), (7, 4, 8), (10, 3, 4))),
        ("f_text2", ((3, 8, 8), (7, 4, 8), (10, 3, 4))),
    ):
        add(f"{net}.0", 8 * 64, 42, bias=True)
        for place, channels, before in layers:
            add(f"{net}.{place}", channels, before, 3, 3, bias=place == 10)
            add_norm(f"{net}.{place + 1}", channels)
    torch.save(state, path)


# --------------------------------------------------------------------------------------- compare

TIMES = {"minutes", "seconds", "tflops"}
"""Last parts of keys of durations and speeds; also all that end with _seconds or _per_second."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")
"""Time stamps, wherever they stand in a text."""
PLACES = {"argv", "counterlens", "mark", "run", "store", "versions"}
"""Keys of ids drawn by chance, of runs, paths and versions."""
PRESENT = {"", ".html", ".log", ".md", ".pdf", ".sqlite", ".txt"}
"""Endings of files that need only be there on both sides; stdout.txt and exit.txt are compared."""
CHANCE = {"merges.txt", "tokenizer.json", "vocab.json"}
"""Files that need only be there: a tokenizer's training orders pairs of equal count by chance."""
TEXT_FILES = {"stdout.txt", "exit.txt"}
IGNORED_FILES = ("stderr.txt", "events.out.tfevents.")
MANIFEST = "run.json"


@dataclass
class Renames:
    """What was renamed on purpose, from before to after."""

    keys: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path | None) -> "Renames":
        """Read a list; a line that is none is an error that names it."""
        made = cls()
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("drop:"):
                made.dropped.add(text.removeprefix("drop:").strip())
                continue
            old, arrow, new = text.partition("->")
            if not arrow or not old.strip():
                raise SystemExit(f"{path}:{number}: {line!r}, expected old -> new")
            if old.startswith("file:"):
                made.files[old.removeprefix("file:").strip()] = new.strip()
            elif old.startswith("text:"):
                made.texts[old.removeprefix("text:").strip()] = new.strip()
            else:
                made.keys[old.strip()] = new.strip()
        return made

    def key(self, key: str) -> str:
        """A key of before as it is called after."""
        return _renamed(key, ".", self.keys)

    def file(self, path: str) -> str:
        """A path of before as it is called after."""
        return _renamed(path, "/", self.files)

    def text(self, text: str) -> str:
        """A text of before as it reads after; key names inside it follow the keys."""
        for old, new in self.texts.items():
            text = text.replace(old, new)
        return self.keys.get(text, text)


def _renamed(name: str, sign: str, renames: Mapping[str, str]) -> str:
    """The whole name if it is listed, else part by part, longest runs of parts first."""
    if not renames or name in renames:
        return renames.get(name, name)
    parts, found, i = name.split(sign), [], 0
    while i < len(parts):
        for j in range(len(parts), i, -1):
            if (run_ := sign.join(parts[i:j])) in renames:
                found.append(renames[run_])
                i = j
                break
        else:
            found.append(parts[i])
            i += 1
    return sign.join(found)


def compare(
    before: Path, after: Path, renames: Renames, only: Sequence[str] = (), manifests: bool = False
) -> Iterator[str]:
    """One line for each difference between two sets of golden runs."""
    names = [_rows(folder, only) for folder in (before, after)]
    for name in sorted(names[0] ^ names[1]):
        yield f"{name}: only in {before if name in names[0] else after}"
    for name in sorted(names[0] & names[1]):
        for line in _compare_row(before / name, after / name, renames, manifests):
            yield f"{name}: {line}"


def _rows(folder: Path, only: Sequence[str]) -> set[str]:
    rows = {path.parent.name for path in folder.glob("*/exit.txt")}
    return {name for name in rows if not only or name in only}


def _compare_row(a: Path, b: Path, renames: Renames, manifests: bool) -> Iterator[str]:
    old = {renames.file(path): a / path for path in _files(a)}
    new = {path: b / path for path in _files(b)}
    for path in sorted(old.keys() - new.keys()):
        yield f"{path}: missing after"
    for path in sorted(new.keys() - old.keys()):
        yield f"{path}: not there before"
    for path in sorted(old.keys() & new.keys()):
        if Path(path).name == MANIFEST and not manifests:
            continue
        roots = (str(a.parent.resolve()), str(b.parent.resolve()))
        for line in _compare_file(old[path], new[path], renames, roots):
            yield f"{path}: {line}"


def _files(folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(IGNORED_FILES)
    ]


def _compare_file(a: Path, b: Path, renames: Renames, roots: tuple[str, str]) -> Iterator[str]:
    if b.name in CHANCE:
        return
    if b.suffix in (".json", ".jsonl", ".parquet") or b.name in TEXT_FILES:
        yield from _differences(
            _leaves(a, lambda text: renames.text(_placeless(text, roots[0])), renames),
            _leaves(b, lambda text: _placeless(text, roots[1]), renames, keys=False),
        )
    elif b.suffix not in PRESENT and _digest(a) != _digest(b):
        yield f"other contents ({_digest(a)[:12]} before, {_digest(b)[:12]} after)"


def _placeless(text: str, root: str) -> str:
    """A text without the folder of all runs and without time stamps."""
    return MOMENT.sub("MOMENT", text.replace(root, "OUT"))


def _text(path: Path) -> str:
    """A file as text; a Parquet table as JSON."""
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8")
    from pyarrow import parquet

    return json.dumps(parquet.read_table(path).to_pylist(), default=str)


def _leaves(
    path: Path, text: Callable[[str], str], renames: Renames, keys: bool = True
) -> dict[str, str]:
    """Every value of a file under its address, as it is written there."""
    rename = renames.key if keys else str
    whole = _text(path)
    if path.suffix == ".jsonl":
        parts = [(f"line {i}", line) for i, line in enumerate(whole.split("\n"), 1) if line]
    else:
        parts = [("", whole)]
    found: dict[str, str] = {}
    for address, part in parts:
        try:
            value = json.loads(part, parse_float=_Written, parse_int=_Written)
        except ValueError:
            lines = part.split("\n")
            found.update({f"line {i}": text(line) for i, line in enumerate(lines, 1)})
            continue
        found.update(_walk(value, address, text, rename, renames.dropped))
    return found


class _Written(str):
    """A number with the digits it was written with."""


def _walk(
    value: Any,
    address: str,
    text: Callable[[str], str],
    rename: Callable[[str], str],
    dropped: set[str],
) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if not value:
            yield address, "{}"
        for key, inner in value.items():
            if not ignored(key) and key not in dropped and rename(key) not in dropped:
                yield from _walk(inner, f"{address}/{rename(key)}", text, rename, dropped)
    elif isinstance(value, list):
        yield f"{address} (length)", str(len(value))
        for i, inner in enumerate(value):
            yield from _walk(inner, f"{address}/{i}", text, rename, dropped)
    elif isinstance(value, str) and not isinstance(value, _Written):
        yield address, json.dumps(text(value), ensure_ascii=False)
    else:
        yield address, str(value)


def ignored(key: str) -> bool:
    """Whether a key holds a duration, a place or a version."""
    last = key.rpartition(".")[2]
    return last in TIMES or key in PLACES or last.endswith(("_seconds", "_per_second"))


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(a.keys() | b.keys()):
        where = key or "all"
        if key not in b:
            yield f"{where}: missing after"
        elif key not in a:
            yield f"{where}: not there before"
        elif a[key] != b[key]:
            yield f"{where}: {_short(a[key])} before, {_short(b[key])} after"


def _short(text: str) -> str:
    return text if len(text) < 120 else text[:117] + "..."


def _digest(path: Path) -> str:
    """SHA-256 of the contents; of an archive, of its members without their time stamps."""
    data = hashlib.sha256()
    if path.suffix in (".npz", ".zip") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                data.update(name.encode() + b"\0" + archive.read(name))
    else:
        data.update(path.read_bytes())
    return data.hexdigest()


# ------------------------------------------------------------------------------------------ main


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run the commands")
    one.add_argument("out", type=Path, nargs="?", help="folder for all runs")
    one.add_argument("--only", nargs="+", default=[], metavar="NAME")
    one.add_argument("--again", action="store_true", help="run rows anew that ended well before")
    one.add_argument("--list", action="store_true", help="print the command lines and stop")
    two = commands.add_parser("compare", help="compare two sets of runs")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--only", nargs="+", default=[], metavar="NAME")
    two.add_argument("--renames", type=Path, metavar="FILE")
    two.add_argument("--manifests", action="store_true", help="compare run.json, too")
    given = parser.parse_args(arguments)
    if given.command == "compare":
        for folder in (given.before, given.after):
            if not _rows(folder, given.only):
                parser.error(f"{folder} holds no golden runs")
        lines = list(
            compare(
                given.before, given.after, Renames.read(given.renames), given.only, given.manifests
            )
        )
        print("\n".join(lines) if lines else "equal")
        return int(bool(lines))
    if given.list:
        for name in given.only or COMMANDS:
            print(f"{name}: {shlex.join(words_of(name))}")
        return 0
    if given.out is None:
        parser.error("expected a folder for the runs")
    return int(bool(run(given.out, given.only, given.again)))


if __name__ == "__main__":
    sys.exit(main())
