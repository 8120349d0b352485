"""The one training loop.

Everything random in update n is drawn from a generator seeded with (seed, n, process), and the
batches are a function of n: a run that was killed continues from weights, optimiser, average and
n alone, to the bit on a CPU. On a GPU forward and backward are compiled, captured once as a CUDA
graph and replayed; the host reads the losses every `log_every` updates and waits for nothing else.
"""

from counterlens.fit.distributed import World
from counterlens.fit.loop import fit
from counterlens.fit.plan import Plan, Progress, RateSchedule, Trainable
from counterlens.fit.update import Mixed, WeightAverage

__all__ = [
    "Mixed",
    "Plan",
    "Progress",
    "RateSchedule",
    "Trainable",
    "WeightAverage",
    "World",
    "fit",
]
