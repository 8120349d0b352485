"""Options of every command that draws with a generator, declared once. Nothing here loads torch."""

from typing import Any

from counterlens.workflows._shared.options import option, record

GROUP = "Generator"


@record
class GeneratorOption:
    """Of workflows that draw with a generator."""

    generator: str | None = option(
        None,
        help="Diffusers folder or hub id. Default: the shipped generator.",
        unit="FOLDER",
        group=GROUP,
    )


@record
class MemoryOption:
    """Of workflows that compute gradients through a generator."""

    memory: str | None = option(
        None,
        help="Memory to use, e.g. 12GB. Default: most of what is free.",
        unit="SIZE",
        group=GROUP,
        scope="run",
    )


@record
class HalfOption:
    """Of workflows whose generator may compute in half precision."""

    half: bool = option(False, help="Generator in half precision (bfloat16).", group=GROUP)


@record
class SearchSettings:
    """Of workflows whose search has settings that are seldom changed."""

    changes: tuple[str, ...] = option(
        (),
        flag="--set",
        help="Change a setting: text_rate, noise_rate, cuts, … of the generator's search.",
        unit="KEY=VALUE",
        group=GROUP,
    )


def updates(default: int) -> Any:
    """The option --updates; its default differs between searches."""
    return option(default, help="Updates of the generator's inputs.", unit="N", group=GROUP)


def sampling_steps(default: int, more: str = "") -> Any:
    """The option --sampling-steps; `more` stands behind its meaning."""
    return option(default, help=f"Steps of the diffusion chain{more}.", unit="N", group=GROUP)


def guidance() -> Any:
    """The option --guidance."""
    return option(3.0, help="How strongly the text guides.", unit="WEIGHT", group=GROUP)


def captioner(more: str) -> Any:
    """The option --captioner; `more` says what its captions are for."""
    return option(
        None, help=f"Hub id or folder of a captioner, {more}.", unit="FOLDER", group=GROUP
    )


def mask(more: str) -> Any:
    """The option --mask; `more` says what it may be."""
    return option((), help=f"Mask of the object. {more}", unit="MASK", group=GROUP)
