"""A replayed UNet against the plain one: the same chain, the same gradients, kept or not.

Oracle: the chain through the network itself. On a CPU recordings are plain functions, so what is
tested there is which recording a step gets and what is copied in and out; the graphs themselves are
tested where there is a CUDA device.
"""

import gc

import pytest
import torch

from counterlens.ball import row_seeds
from counterlens.generators.diffusion.cuda_graph import recorded
from counterlens.generators.diffusion.ddim import Hooks, ddim
from counterlens.generators.diffusion.memory import measure
from counterlens.generators.diffusion.optimise import ChainSettings, Term, ascend, begin
from counterlens.objectives import entry
from diffusion_models import tiny_model

pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def chain(model, *, stored=None):
    given = begin(model, ["a photograph of a cat", "a bridge"], row_seeds(2, 0), steps=STEPS)
    leaves = [t.detach().clone().requires_grad_() for t in (given.z, given.cond, given.null)]
    out = ddim(model, *leaves, last=2, stored=stored)
    total = sum(z.square().sum() for z in out.originals)
    return out.z.detach(), torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("keep", [0, 2, STEPS, STEPS + 1])
@pytest.mark.parametrize("stored", [None, 0])
def test_a_replayed_chain_is_the_chain(model, keep, stored):
    z, grads = chain(model)
    replayed = recorded(model, keep=keep)
    for _ in range(2):  # the second time, recordings are used again
        again, others = chain(replayed, stored=stored)
        assert torch.allclose(again, z, atol=1e-6)
        for one, other in zip(grads, others, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6 * one.abs().max().item())
    assert len(replayed.unet._free) == keep


def test_a_chain_without_a_backward_pass_gives_its_recordings_back(model):
    replayed = recorded(model, keep=STEPS)
    given = begin(model, ["a photograph of a cat"], row_seeds(1, 0), steps=STEPS)
    z = given.z.clone().requires_grad_()
    out = ddim(replayed, z, given.cond, given.null)
    assert not replayed.unet._free
    del out
    gc.collect()
    assert len(replayed.unet._free) == STEPS
    with torch.no_grad():
        ddim(replayed, z, given.cond, given.null)
    assert len(replayed.unet._free) == STEPS


def test_inner_values_are_used_once(model):
    replayed = recorded(model, keep=STEPS)
    given = begin(model, ["a photograph of a cat"], row_seeds(1, 0), steps=STEPS)
    z = given.z.clone().requires_grad_()
    total = ddim(replayed, z, given.cond, given.null).z.sum()
    torch.autograd.grad(total, z, retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(total, z)


def test_another_batch_is_recorded_anew(model):
    replayed = recorded(model, keep=1)
    for rows in (1, 2, 1):
        given = begin(model, ["a photograph of a cat"] * rows, row_seeds(rows, 0), steps=2)
        with torch.no_grad():
            want = ddim(model, given.z, given.cond, given.null).z
            assert torch.allclose(
                ddim(replayed, given.z, given.cond, given.null).z, want, atol=1e-6
            )


def test_a_search_with_hooks_is_refused(model):
    given = begin(model, ["a photograph of a cat"], row_seeds(1, 0), steps=2)
    with pytest.raises(ValueError, match="recorded"):
        ascend(
            recorded(model), given, [], seeds=row_seeds(1, 0), hooks=Hooks(around=lambda i: None)
        )


def test_networks_that_are_asked_count_in_memory(model):
    settings = ChainSettings(steps=2, cuts=4)
    given = begin(model, ["a photograph of a cat"], row_seeds(1, 0), steps=2)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.SiLU(), torch.nn.Flatten())
    column = torch.zeros(1, dtype=torch.long)
    step, bare = measure(model, given, settings)
    again, whole = measure(model, given, settings, [Term(entry(net, column), 16)])
    assert step == again
    assert whole.stored >= bare.stored + 4 * 64 * 14 * 14 * 4  # what SiLU keeps of four cut-outs


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [0, 2, STEPS])
def test_recorded_graphs_are_the_network(keep):
    made = tiny_model()
    for net in (made.vae, made.unet, made.text):
        net.to("cuda")
    z, grads = chain(made)
    replayed = recorded(made, keep=keep)
    for _ in range(3):
        again, others = chain(replayed)
        assert torch.allclose(again, z, rtol=1e-3, atol=1e-4)
        for one, other in zip(grads, others, strict=True):
            assert torch.cosine_similarity(one.flatten(), other.flatten(), 0) > 0.9999
