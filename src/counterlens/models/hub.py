"""Weights that come over the network: one clear line when they cannot be had.

A machine without a network would otherwise wait through minutes of retries; what lies in the
local cache is used either way.
"""

import socket
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from counterlens.errors import CounterlensError, InputError


@contextmanager
def fetching(what: str, *, instead: str) -> Iterator[None]:
    """Say in one line that `what` could not be fetched, and what to type instead."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _resolves(constants.ENDPOINT)
    try:
        yield
    except CounterlensError:
        raise
    except (OSError, urllib.error.URLError) as error:  # the hub's own errors are OSErrors
        first = str(error).strip().partition("\n")[0].partition(". ")[0][:160].rstrip(".")
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
