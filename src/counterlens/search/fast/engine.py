"""Engine: the only place where a search calls the model.

One forward and one input gradient per evaluation, weights frozen. The search may run on a fast
copy of the model (channels last, half precision, compiled); whatever it claims is decided by
`verify`, the model itself in float32.
"""

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from counterlens.checks import check_logits
from counterlens.errors import InputError
from counterlens.objectives import Predict, decision_margin_of, full, margin_of
from counterlens.search.fab import nearest_plane
from counterlens.search.fast import prebuild
from counterlens.search.fast.folding import fold, lighten
from counterlens.search.fast.fusing import can_fuse, fuse, orders
from counterlens.search.fast.prebuild import KernelVariant
from counterlens.search.result import frozen, networks_of
from counterlens.search.rule import Evaluation
from counterlens.types import Images, Labels, Logits, Scores

LogitScore = Callable[[Logits, Labels, Labels], Scores]
"""A score of logits, given the true and the target class of each row."""

SearchPrecision = Literal["float32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DRIFT = 0.1  # how far the fast copy's logits may be from the model's, relative to their spread


@dataclass
class PassCounts:
    """How many images went forward, backward and through verification, and how many of the last
    came back with logits that are no numbers."""

    forwards: int = 0
    backwards: int = 0
    verifications: int = 0
    odd: int = 0

    def as_dict(self) -> dict[str, int]:
        """Plain numbers."""
        return {
            "forwards": self.forwards,
            "backwards": self.backwards,
            "verifications": self.verifications,
            "odd": self.odd,
        }


@dataclass
class Engine:
    """A model prepared for searching; build it with `open_engine`.

    Args:
        model: decides in float32.
        fast_copy: what the search evaluates.
        repeats: evaluations averaged per point, for randomised models.
        compiling: seconds until the fast copy was compiled.
        pads: fill batches up to one of a few sizes.
        differentiable: whether a gradient reaches the pixels; without it only `value` works.
    """

    model: Predict
    fast_copy: Predict
    device: torch.device
    precision: SearchPrecision = "float32"
    repeats: int = 1
    notes: list[str] = field(default_factory=list)
    compiling: float = 0.0
    began: float = field(default_factory=time.monotonic)
    pads: bool = False
    differentiable: bool = True
    counts: PassCounts = field(default_factory=PassCounts)

    @property
    def enlarge(self) -> float:
        """Factor on scores before they are differentiated."""
        return 1024.0 if self.precision == "fp16" else 1.0

    def verify(self, z: Images, *, batch: int) -> Logits:
        """Logits of the model itself, in float32 without tensor-core rounding."""
        self.counts.verifications += len(z)
        with torch.no_grad(), _exact():
            parts = [full(self.model(part)) for part in torch.split(z.to(self.device), batch)]
        logits = torch.cat(parts)
        self.counts.odd += int((~torch.isfinite(logits)).any(1).sum())
        return logits

    def value(self, score: LogitScore, z: Images, y: Labels, target: Labels) -> Evaluation:
        """Score and margin, no gradient."""
        with torch.no_grad():
            logits = self._mean([self._fast_logits(z) for _ in range(self.repeats)])
        self.counts.forwards += len(z) * self.repeats
        return Evaluation(score(logits, y, target), decision_margin_of(logits, y))

    def slope(self, score: LogitScore, z: Images, y: Labels, target: Labels) -> Evaluation:
        """Score, margin and input gradient."""
        logits, scores, grads = [], [], []
        for _ in range(self.repeats):
            with torch.enable_grad():
                point = z.detach().requires_grad_(True)
                out = self._fast_logits(point)
                value = score(out, y, target)
                # half precision rounds small gradients to zero, so they travel enlarged
                (grad,) = torch.autograd.grad(self.enlarge * value.sum(), point)
            logits.append(out.detach())
            scores.append(value.detach())
            grad = grad.contiguous()
            grads.append(grad / self.enlarge if self.enlarge != 1 else grad)
        self.counts.forwards += len(z) * self.repeats
        self.counts.backwards += len(z) * self.repeats
        margin = decision_margin_of(self._mean(logits), y)
        return Evaluation(self._mean(scores), margin, self._mean(grads))

    def nearest(self, norm: Any, z: Images, y: Labels) -> Evaluation:
        """Value and gradient of the nearest linearised boundary: one backward pass per class."""
        with torch.enable_grad():
            point = z.detach().requires_grad_(True)
            logits = full(self.model(point))
            value, grad = nearest_plane(logits, point, y, norm)
        self.counts.forwards += len(z)
        self.counts.backwards += len(z) * logits.shape[1]
        return Evaluation(value, decision_margin_of(logits.detach(), y), grad)

    def _fast_logits(self, z: Images) -> Logits:
        rows = len(z)
        room = _round_up(rows) if self.pads else rows
        if room > rows:
            z = torch.cat([z, z[-1:].expand(room - rows, -1, -1, -1)])
        z = z.contiguous(memory_format=torch.channels_last)
        half = self.precision != "float32"
        if not half:
            return full(self.fast_copy(z)[:rows])
        with torch.autocast(z.device.type, _DTYPES[self.precision], cache_enabled=False):
            return full(self.fast_copy(z)[:rows])

    @staticmethod
    def _mean(parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


@contextmanager
def open_engine(
    model: Predict,
    example: Images,
    *,
    precision: SearchPrecision | None = None,
    compiled: bool = False,
    repeats: int = 1,
    later: Mapping[str, Sequence[KernelVariant]] | None = None,
) -> Iterator[Engine]:
    """Freeze a model, evaluate it once, and yield an `Engine` on it; afterwards it is as before.

    Args:
        example: images of the kind that will come, at least one.
        precision: of the search; None means bf16 on a GPU and float32 elsewhere.
        compiled: compile the fast copy with torch.compile.
        repeats: evaluations averaged per point, for randomised models.
        later: kernels that a search will need, to be built beside other work.
    """
    where = home(model, example)
    if precision is None:
        precision = "bf16" if where.type == "cuda" else "float32"
    if repeats == 1 and not compiled and can_fuse(where) and isinstance(model, nn.Module):
        prebuild.build(orders(model, _DTYPES.get(precision, torch.float32)))
        prebuild.build(later or {})
    with frozen(model), _deterministic():
        probe(model, example[:1].to(where))
        engine = Engine(model, model, where, repeats=repeats, pads=where.type == "cuda")
        engine.differentiable = differentiable(model, example[:1].to(where))
        if repeats == 1:  # a randomised model is searched as it is
            _speed_up(engine, example[:64].to(where), precision, compiled)
        yield engine


def probe(model: Predict, example: Images) -> int:
    """How many classes the model has; a clear error if it does not answer with logits."""
    try:
        with torch.no_grad():
            out = model(example)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the model refuses images of shape {tuple(example.shape)}: {line[:200]}. Expected the "
            "size it was trained on; resize the data or declare preprocess."
        ) from error
    check_logits(out, rows=len(example))
    return out.shape[1]


def home(model: Predict, example: Images) -> torch.device:
    """Where the model lives; a function without networks lives where its images do."""
    for net in networks_of(model):
        for tensor in (*net.parameters(), *net.buffers()):
            return tensor.device
    return example.device


def differentiable(model: Predict, example: Images) -> bool:
    """Whether a gradient reaches the pixels of a model that answers without one."""
    try:
        _logits_and_gradient(model, example)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # detached outputs, NumPy, TorchScript and others each fail in their own way
        return False
    return True


def _speed_up(engine: Engine, example: Images, wanted: SearchPrecision, compiled: bool) -> None:
    """Give the engine the fastest copy whose outputs equal the model's."""
    fallback: dict[SearchPrecision, SearchPrecision] = {"fp16": "bf16", "bf16": "float32"}
    fast_copy = _folded_copy(engine.model, example[:2])
    if fast_copy is None:
        engine.notes.append("no fast copy: the search runs on the model itself, in float32")
        return
    engine.fast_copy = fast_copy
    exact = engine.verify(example, batch=64)
    while wanted != "float32":
        engine.precision = wanted
        engine.fast_copy = lighten(copy.deepcopy(fast_copy), _DTYPES[wanted])
        with torch.no_grad():
            off = _off(exact, engine._fast_logits(example))
        if off < DRIFT:  # NaN fails this too
            break
        engine.notes.append(f"{wanted} changes the logits by {off:.2g} of their spread: not used")
        wanted = fallback[wanted]
        engine.precision, engine.fast_copy = "float32", fast_copy
    if compiled:
        engine.fast_copy = _compile(engine.fast_copy)
    elif can_fuse(engine.device):
        _fuse(engine, example[:8])


def _fuse(engine: Engine, example: Images) -> None:
    """Give the engine a copy with fewer passes over memory, if its outputs are the same."""
    plain = engine.fast_copy
    assert isinstance(plain, nn.Module)
    theirs, slope = _logits_and_gradient(engine._fast_logits, example)
    try:
        engine.fast_copy = copy.deepcopy(plain)
        count = fuse(engine.fast_copy)
        ours, our_slope = _logits_and_gradient(engine._fast_logits, example)
    except Exception as error:  # a kernel that cannot be built is no reason to stop
        engine.notes.append(f"no fused passes: {type(error).__name__}")
        engine.fast_copy = plain
        return
    along = torch.cosine_similarity(slope.flatten(1), our_slope.flatten(1)).median().item()
    if not count or not (_off(theirs, ours) < DRIFT and along > 1 - DRIFT):
        engine.fast_copy = plain


def _compile(fast_copy: nn.Module) -> nn.Module:
    """The fast copy compiled for batches of any size.

    Models of one class share a Python function, and dynamo stops compiling one after a few
    variants: eight models with and without gradients need more than its default.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 64)
    fast: nn.Module = torch.compile(fast_copy, dynamic=True)  # type: ignore[assignment]
    return fast


def _folded_copy(model: Predict, example: Images) -> nn.Module | None:
    """A copy with batch norms folded into convolutions, where that changes no answer."""
    if not isinstance(model, nn.Module):
        return None
    try:
        fast_copy = fold(copy.deepcopy(model))
        fast_copy = fast_copy.to(memory_format=torch.channels_last)
        with _exact():
            (theirs, slope), (ours, copy_slope) = (
                _logits_and_gradient(model, example),
                _logits_and_gradient(fast_copy, example),
            )
    except Exception:  # any model that cannot be copied or traced is searched as it is
        return None
    same = _off(theirs, ours) < 1e-3 and _off(slope, copy_slope) < 1e-2
    return fast_copy if same else None  # tracing loses gradients that were written by hand


def _logits_and_gradient(model: Predict, example: Images) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a mixture of them."""
    with torch.enable_grad():
        z = example.detach().clone().requires_grad_(True)
        logits = full(model(z))
        weights = torch.arange(1, logits.shape[1] + 1, device=z.device).to(logits)
        (grad,) = torch.autograd.grad((logits * weights.cos()).sum(), z)
    return logits.detach(), grad


def _off(theirs: Tensor, ours: Tensor) -> float:
    """The largest difference of a row, relative to the row's spread."""
    theirs, ours = theirs.flatten(1), ours.flatten(1)
    spread = (theirs.amax(1) - theirs.amin(1)).clamp_min(1e-12)
    return ((theirs - ours).abs().amax(1) / spread).max().item()


@contextmanager
def _deterministic() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


@contextmanager
def _exact() -> Iterator[None]:
    """True float32: no TF32 in convolutions or matrix products."""
    matmul = torch.backends.cuda.matmul.allow_tf32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            with torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            ):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = matmul


def warm_up(engine: Engine, example: Images, batch: int) -> None:
    """Compile the fast copy now, for batches of any size."""
    for rows in (batch, max(2, batch // 2 + 1)):
        z = example[:1].to(engine.device).expand(rows, -1, -1, -1).contiguous()
        y = torch.zeros(rows, dtype=torch.int64, device=engine.device)
        if engine.differentiable:
            engine.slope(_first_margin, z, y, y)
        engine.value(_first_margin, z, y, y)
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    engine.compiling = time.monotonic() - engine.began
    engine.notes.append(f"compiled in {engine.compiling:.1f} s")
    engine.counts = PassCounts()


def _first_margin(logits: Logits, y: Labels, _: Labels) -> Scores:
    return margin_of(logits, y)


def auto_batch(engine: Engine, example: Images, *, most: int = 2048, share: float = 0.5) -> int:
    """A power of two that fits the device's memory with room to spare."""
    if engine.device.type != "cuda":
        pixels = example[0].numel()
        return max(8, min(128, _power_of_two(128 * 3072 // pixels)))
    trial = example[:1].to(engine.device).expand(16, -1, -1, -1).contiguous()
    labels = torch.zeros(16, dtype=torch.int64, device=engine.device)
    torch.cuda.synchronize(engine.device)
    torch.cuda.reset_peak_memory_stats(engine.device)
    before = torch.cuda.memory_allocated(engine.device)
    (engine.slope if engine.differentiable else engine.value)(_first_margin, trial, labels, labels)
    torch.cuda.synchronize(engine.device)
    each = max(torch.cuda.max_memory_allocated(engine.device) - before, 1) / 16
    each += 12 * example[0].numel() * 4  # the state of a search beside it
    free, _ = torch.cuda.mem_get_info(engine.device)
    return min(most, _power_of_two(int(share * free / each)))


def _round_up(rows: int) -> int:
    """The next of 32 sizes per octave: a GPU library plans its kernels anew for each size."""
    grain = max(8, _power_of_two(rows) // 32)
    return -(-rows // grain) * grain


def _power_of_two(most: int) -> int:
    return 1 << (max(most, 1).bit_length() - 1)
