"""Public names that are imported when they are first used, so that a package imports in no time."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from counterlens.errors import nearest


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose public names live elsewhere.

    Args:
        package: name of the module, for errors.
        homes: public name → module below counterlens, with ":NAME" where the name is another
            there, and ":" alone where the module itself is meant.
    """

    def load(name: str) -> Any:
        if name not in homes:
            near = nearest(name, homes) if not name.startswith("_") else None
            hint = f"; did you mean {near}?" if near else ""
            raise AttributeError(f"{package} has no {name!r}{hint}")
        module, sign, other = homes[name].partition(":")
        loaded = import_module(f"counterlens.{module}")
        return loaded if sign and not other else getattr(loaded, other or name)

    return load, lambda: sorted(homes)
