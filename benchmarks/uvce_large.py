"""The last stage of uvce_study.py: the whole pipeline at 512 pixels, with random weights."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from counterlens.explanations.counterfactuals.uvce import UVCE, Change, class_term, prepare, uvce
from counterlens.generators.diffusion.libraries import libraries
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.tiny import make_tokenizer
from counterlens.search import frozen
from diffusion_networks import build
from uvce_shared import Study


def large(study: Study) -> None:
    """The whole pipeline at 512 pixels, random weights: that it runs, and what it takes."""
    tiny = study.given.tiny
    words = ["a photograph of a cat", "a photograph of a steel arch bridge"]
    model = with_text(build(study.device, tiny=tiny), words, layers=1 if tiny else 12)
    study.say("512: networks made")
    net = study.net(study.given.guide[0])
    x = torch.rand(1, 3, model.side, model.side, device=study.device)
    chain = replace(UVCE.chain, steps=4 if tiny else 20, updates=1 if tiny else 3)
    settings = replace(UVCE, chain=chain, inner=2 if tiny else 10)
    if study.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    ready = prepare(model, x, [words[0]], ["cat"], settings=settings)
    middle = time.monotonic()
    study.say(f"512: prepared in {middle - began:.1f} s")
    with frozen(net):
        found = uvce(
            model, ready, [class_term(net, torch.tensor([0]))],
            [Change(words[1], ("cat", "steel arch bridge"))], settings=settings, stored=0,
            seeds=torch.tensor([1], device=study.device),
        )  # fmt: skip
    end = time.monotonic()
    peak = torch.cuda.max_memory_allocated() / 2**30 if study.device.type == "cuda" else None
    finite = bool(torch.isfinite(found.images).all())
    study.keep("512", {
        "side": model.side, "weights": "random", "precision": "float32", "finite": finite,
        "prepare_seconds": middle - began, "search_seconds": end - middle,
        "updates": chain.updates, "steps": chain.steps,
        "inner": settings.inner, "schedules": len(settings.schedules),
        "peak_gib": peak, "maps_gib": ready.maps.bytes / 2**30, "device": str(study.device),
        "not_worse": bool((found.scores >= found.start).all()),
    })  # fmt: skip


def with_text(model: LatentDiffusion, words: Sequence[str], *, layers: int) -> LatentDiffusion:
    """A model with a text encoder of random weights and a tokenizer of some words."""
    _, transformers = libraries()
    tokenizer = make_tokenizer(words, merges=40, tokens=77)
    with torch.device(model.device):
        text = transformers.CLIPTextModel(transformers.CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=768, intermediate_size=3072,
            num_hidden_layers=layers, num_attention_heads=12,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ))  # fmt: skip
    text.eval().requires_grad_(False)
    return replace(model, text=text, tokenizer=tokenizer)
