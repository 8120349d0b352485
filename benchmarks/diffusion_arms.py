"""The arms of bench_diffusion.py: each a way to make an update, timed, with its peak memory."""

import argparse
import contextlib
import gc
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torchvision.models import efficientnet_b0

from counterlens.ball import row_seeds
from counterlens.generators.diffusion.cuda_graph import recorded
from counterlens.generators.diffusion.ddim import ddim, guided_noise
from counterlens.generators.diffusion.memory import CONTEXT, parse_memory, room, steps_to_keep
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, Inputs, Term, ascend
from counterlens.generators.diffusion.recompute import StoredSteps
from counterlens.objectives import entry
from diffusion_networks import build


@dataclass(frozen=True)
class Arm:
    """One way to make an update.

    Args:
        paper: float32, each block computed again; else bfloat16.
        batch: images at a time.
        memory: a limit that is enforced, such as 16GB; None takes most of what is free.
        replay: the UNet as CUDA graphs.
        compile: transformer and residual blocks of the UNet compiled.
        seconds: an arm that takes longer is given up.
    """

    name: str
    paper: bool = False
    batch: int = 1
    memory: str | None = None
    replay: bool = False
    compile: bool = False
    seconds: int = 60


ALL = (
    Arm("paper", paper=True, seconds=90),
    Arm("eager-8", batch=8),
    Arm("eager-16GB", memory="16GB"),
    Arm("replay-8", batch=8, replay=True),
    Arm("replay-16GB", memory="16GB", replay=True),
    Arm("replay-4", batch=4, replay=True),
    Arm("compiled-replay-8", batch=8, replay=True, compile=True, seconds=150),
)
"""Those of `all`: what may break a process after what does not; compiled blocks stay compiled."""


class _Enough(Exception):
    """All that is timed was timed."""


class _Late(BaseException):
    """The arm's time is over; no Exception, so that nobody between here and there catches it."""


class Bench:
    """What all arms share: networks made once, the device and the results."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        self.given, self.device, self.began = given, device, time.perf_counter()
        self.cuda = device.type == "cuda"
        self.settings = replace(COUNTERFACTUAL, updates=given.updates)
        if given.tiny:
            self.settings = replace(self.settings, steps=3, cuts=2)
        self.model = build(device, tiny=given.tiny)
        with torch.device(device):
            self.classifier = efficientnet_b0().eval().requires_grad_(False)
        self.found: list[dict[str, Any]] = []
        self.out = Path(given.out) if given.out else None
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text("")
        self.base: float | None = None
        self.layouts = dict.fromkeys(("unet", "vae"), torch.channels_last)

    def keep(self, row: dict[str, Any]) -> None:
        """Print a result, and write it."""
        self.found.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(line + "\n")

    def clean(self) -> None:
        """Give memory back, and lift the limit."""
        gc.collect()
        if self.cuda:
            with contextlib.suppress(RuntimeError):  # an error of an arm may come up here again
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(1.0)

    def guard(self, row: dict[str, Any], seconds: int, body: Callable[[], dict[str, Any]]) -> None:
        """Keep what a body finds; whatever happens to it is its result, and the next can begin."""
        began = time.perf_counter()
        seconds = min(seconds, max(1, int(self.given.seconds - (began - self.began))))
        try:
            with limit(seconds if self.cuda else 0):
                row |= body()
        except _Late:
            row["failed"] = f"not done in {seconds} s"
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error).strip()[:400]}"
        row["seconds"] = round(time.perf_counter() - began, 1)
        self.clean()
        self.keep(row)

    def take(self, arm: Arm) -> None:
        """Measure an arm, and how many times as fast as the paper's it is."""

        def body() -> dict[str, Any]:
            row = self.measure(arm)
            if arm.paper:
                self.base = row["per_image"]
            elif self.base is not None:
                row["times_as_fast"] = self.base / row["per_image"]
            return row

        self.guard({"arm": arm.name, "images": arm.batch}, arm.seconds, body)

    def measure(self, arm: Arm) -> dict[str, Any]:
        """Seconds per update and image, and peak memory; less is kept where memory ran out."""
        self.prepare(arm)
        start, terms = self.inputs(arm)
        stored: StoredSteps = None
        if not arm.paper:
            budget = room(arm.memory, self.device)
            stored, fitting = steps_to_keep(self.model, start, self.settings, budget, terms)
            if fitting < arm.batch:
                raise RuntimeError(f"{fitting} images fit, {arm.batch} were asked for")
            if arm.replay and stored == "blocks":
                raise RuntimeError("not one step fits, and a recording is of whole steps")
            if arm.replay:  # one more for those that are not kept; pools waste some
                stored = stored if stored == self.settings.steps else max(0, int(0.85 * stored) - 1)
            if arm.compile:  # after planning, which asks about one image: another shape
                compile_blocks(self.model.unet)
        short: list[StoredSteps] = []
        while True:
            self.reset(arm)
            stamps, error = self.updates(arm, start, terms, stored)
            if error is None:
                break
            if stored is None or stored == "blocks" or (not stored and arm.replay):
                raise RuntimeError(error)
            short.append(stored)
            stored = stored // 2 if stored else "blocks"
        spans = [b - a for a, b in itertools.pairwise(stamps)][1:]  # the first one wakes things up
        return {
            "kept": stored, "ran_out_with_kept": short, "first_look_seconds": stamps[0],
            "seconds_per_update": spans, "per_image": min(spans) / arm.batch, **self.peaks(),
            "limit": arm.memory, "precision": "float32" if arm.paper else "bfloat16",
            "replay": arm.replay, "compile": arm.compile,
            "steps": self.settings.steps, "cuts": self.settings.cuts, "side": self.model.side,
            "classifier": "torchvision efficientnet_b0, random weights",
            "device": torch.cuda.get_device_name() if self.cuda else "cpu",
            "torch": torch.__version__,
        }  # fmt: skip

    def updates(
        self, arm: Arm, start: Inputs, terms: list[Term], stored: StoredSteps
    ) -> tuple[list[float], str | None]:
        """When each look was done, from the beginning; or that memory ran out."""
        model = self.model
        if arm.replay:
            assert isinstance(stored, int)
            model = recorded(model, keep=stored)
        stamps: list[float] = []
        began = time.perf_counter()

        def told(k: int, now: object) -> None:
            if self.cuda:
                torch.cuda.synchronize()
            stamps.append(time.perf_counter() - began)
            if k == self.settings.updates - 1:  # the last look needs no gradient: it is no update
                raise _Enough

        seeds = row_seeds(arm.batch, 0, device=self.device)
        try:
            with contextlib.suppress(_Enough):
                ascend(
                    model,
                    start,
                    terms,
                    settings=self.settings,
                    seeds=seeds,
                    stored=stored,
                    callback=told,
                )
        except RuntimeError as error:
            if not ran_out(error):
                raise
            return [], str(error).splitlines()[0]
        return stamps, None

    def prepare(self, arm: Arm) -> None:
        """The networks in the arm's form."""
        kind = torch.float32 if arm.paper else torch.bfloat16
        for name in ("unet", "vae"):
            net: Any = getattr(self.model, name)
            torch.nn.Module.to(
                net, dtype=kind,
                memory_format=torch.contiguous_format if arm.paper else self.layouts[name],
            )  # fmt: skip
            net.train(arm.paper)  # diffusers computes again in training only; nothing is dropped
            if arm.paper:
                net.enable_gradient_checkpointing()
            else:
                net.disable_gradient_checkpointing()
        self.classifier.to(kind)

    def inputs(self, arm: Arm) -> tuple[Inputs, list[Term]]:
        """Random noise and texts, and what is raised."""
        kind = torch.float32 if arm.paper else torch.bfloat16

        def table(x: torch.Tensor) -> torch.Tensor:
            return self.classifier(x.to(kind)).float().log_softmax(1)

        count, side = arm.batch, 32 if self.given.tiny else 224
        term = Term(entry(table, torch.zeros(count, dtype=torch.long, device=self.device)), side)
        generator = None  # on the meta device there are shapes alone
        if self.device.type != "meta":
            generator = torch.Generator(self.device).manual_seed(0)
        z = torch.randn(count, *self.model.shape, device=self.device, generator=generator)
        shape = (2, count, self.settings.steps, 77, 768)
        text = torch.randn(shape, device=self.device, generator=generator)
        return Inputs(z, text[0], text[1]), [term]

    def reset(self, arm: Arm) -> None:
        """Memory counted from here; a limit is one that the allocator keeps."""
        self.clean()
        if self.cuda:
            if arm.memory is not None:
                whole = torch.cuda.get_device_properties(self.device).total_memory
                part = (parse_memory(arm.memory) - CONTEXT) / whole
                torch.cuda.set_per_process_memory_fraction(min(1.0, part))
            torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, float | None]:
        """Most memory in tensors, and most that the allocator held, in GiB."""
        if not self.cuda:
            return {"peak_gib": None, "reserved_gib": None}
        return {
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        }

    def probe(self, images: int) -> None:
        """Milliseconds of a guided step and of a decoded image, forward and backward, per layout.

        The faster layout of each network is taken from here on.
        """

        def body() -> dict[str, Any]:
            found: dict[str, dict[str, float]] = {"unet": {}, "vae": {}}
            arm = Arm("probe", batch=images)
            start, _ = self.inputs(arm)
            z = start.z.clone().requires_grad_()
            texts = start.cond[:, 0].clone().requires_grad_(), start.null[:, 0]
            time_of = self.model.schedule.times(self.settings.steps)[0]
            bodies = {
                "unet": lambda: guided_noise(
                    self.model, z, time_of, *texts, self.settings.guidance
                ),
                "vae": lambda: self.model.decode(z),
            }
            for layout in (torch.channels_last, torch.contiguous_format):
                self.layouts = dict.fromkeys(found, layout)
                self.prepare(arm)
                for name, forward in bodies.items():
                    found[name][str(layout)] = 1e3 * self.timed(forward, z)
            for name, spans in found.items():
                quick = min(spans, key=lambda key: spans[key])
                self.layouts[name] = getattr(torch, quick.removeprefix("torch."))
            return {"milliseconds": found,
                    "taken": {name: str(one) for name, one in self.layouts.items()}}  # fmt: skip

        self.guard({"probe": "forward and backward, bfloat16", "images": images}, 60, body)

    def timed(self, forward: Callable[[], torch.Tensor], z: torch.Tensor) -> float:
        """Seconds of forward and backward, the quickest of three after one."""
        spans = []
        for _ in range(4):
            began = time.perf_counter()
            torch.autograd.grad(forward().sum(), z)
            if self.cuda:
                torch.cuda.synchronize()
            spans.append(time.perf_counter() - began)
        return min(spans[1:])

    def check_replay(self) -> None:
        """What replaying says, against the plain network: cosines of latents and gradients."""

        def gradients(keep: int | None, start: Inputs) -> list[torch.Tensor]:
            model = self.model if keep is None else recorded(self.model, keep=keep)
            given = (start.z, start.cond[:, :3], start.null[:, :3])
            leaves = [one.detach().clone().requires_grad_() for one in given]
            chain = ddim(model, *leaves, guidance=self.settings.guidance)
            return [chain.z.detach(), *torch.autograd.grad(chain.z.square().sum(), leaves)]

        def body() -> dict[str, Any]:
            arm = Arm("check", batch=2)
            self.prepare(arm)
            start, _ = self.inputs(arm)
            plain = gradients(None, start)
            return {
                f"kept_{keep}": [
                    cosine(a, b) for a, b in zip(plain, gradients(keep, start), strict=True)
                ]
                for keep in (0, 2)
            }

        self.guard({"check": "replayed against plain: z_0, z_T, C_t, null_t"}, 60, body)


def ran_out(error: BaseException | None) -> bool:
    """Whether memory ran out; a recording that ends early may say something else about it."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def compile_blocks(net: torch.nn.Module) -> None:
    """Compile the blocks that repeat: a network as a whole takes minutes."""
    import torch._dynamo

    torch._dynamo.config.cache_size_limit = 64  # one form of a block for each of its shapes
    for block in net.modules():
        if type(block).__name__ in ("BasicTransformerBlock", "ResnetBlock2D"):
            block.compile(dynamic=False)


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Give up after so many seconds; 0 never does."""

    def ring(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    """Of two tensors as vectors."""
    return torch.cosine_similarity(x.double().flatten(), y.double().flatten(), 0).item()
