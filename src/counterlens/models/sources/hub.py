"""Weights from folders and over the network: one clear line when they cannot be had.

A machine without a network would otherwise wait through minutes of retries; what lies in the
local cache is used either way.
"""

import socket
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from counterlens.errors import CounterlensError, InputError, first_line
from counterlens.generators.diffusion.libraries import transformers_for
from counterlens.runs import user_path


def open_pretrained(
    spec: str, kind: str, *, what: str, option: str, instead: str, device: torch.device
) -> tuple[Any, Any]:
    """Processor and network of transformers, from a folder or by hub id; eval mode, frozen.

    Args:
        kind: the class that opens the network, such as AutoModelForMaskGeneration.
        what: the network in a word, for messages.
        option: the user's option that requests it.
        instead: what to do where it cannot be had.
    """
    transformers = transformers_for(option)
    local = user_path(spec)
    here = local.is_dir()
    if not here and (spec.count("/") != 1 or spec.startswith((".", "/", "~"))):
        raise InputError(
            f"no {what} {spec!r}: expected a hub id OWNER/MODEL or a folder. {instead}"
        )
    where = str(local) if here else spec
    with nullcontext() if here else fetching(spec, instead=instead):
        try:
            processor = transformers.AutoProcessor.from_pretrained(where)
            net = getattr(transformers, kind).from_pretrained(where)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and not here:
                raise  # the message above states that it cannot be fetched
            raise InputError(
                f"{spec} is no {what} that can be opened: {first_line(error)}"
            ) from error
    return processor, net.to(device).eval().requires_grad_(False)


@contextmanager
def fetching(what: str, *, instead: str) -> Iterator[None]:
    """Report in one line that `what` could not be fetched, and what to type instead."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _resolves(constants.ENDPOINT)
    try:
        yield
    except CounterlensError:
        raise
    except (OSError, urllib.error.URLError) as error:  # the hub's own errors are OSErrors
        first = first_line(error).partition(". ")[0].rstrip(".")
        reason = "no network" if constants.HF_HUB_OFFLINE else f"{type(error).__name__}: {first}"
        raise InputError(
            f"{what} is neither in the local cache nor to be fetched ({reason}). {instead}"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = before


def _resolves(address: str) -> bool:
    """Whether the host has an address; behind a proxy, which looks names up itself, assume so."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, None)
    except OSError:
        return False
    return True
