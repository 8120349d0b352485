"""diffusers and transformers: opened on demand, or one line that says what to install."""

from typing import Any

from counterlens.errors import MissingExtra

OLDEST_TRANSFORMERS = 5  # tokenizer folders and offsets of CLIPTokenizer changed with it


def transformers_for(purpose: str) -> Any:
    """The transformers library.

    Args:
        purpose: who needs it, for the message: an option, a spec.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs transformers. Install it: pip install 'counterlens[diffusion]'."
        ) from error
    version = str(transformers.__version__)
    if int(version.partition(".")[0]) < OLDEST_TRANSFORMERS:
        raise MissingExtra(
            f"{purpose} needs transformers {OLDEST_TRANSFORMERS} or newer, {version} is installed. "
            "Update it: pip install -U 'counterlens[diffusion]'."
        )
    return transformers


def libraries() -> tuple[Any, Any]:
    """diffusers and transformers, with their logging reduced."""
    transformers = transformers_for("a generator")
    try:
        import diffusers
    except ImportError as error:
        raise MissingExtra(
            f"generators need {error.name}. Install it: pip install 'counterlens[diffusion]'."
        ) from error
    for library in (diffusers, transformers):  # they report shards and casts
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return diffusers, transformers
