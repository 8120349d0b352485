"""Names of models: NAME=SPEC, or the words of the spec."""

import re
from pathlib import Path

from counterlens.runs.keys import model_words


def named(model: str) -> tuple[str, str]:
    """Name and spec of NAME=SPEC; the spec's own words are the name otherwise.

    >>> named("wide=runs/3/model"), named("zoo:cifar10-plain")
    (('wide', 'runs/3/model'), ('zoo:cifar10-plain', 'zoo:cifar10-plain'))
    """
    given = re.fullmatch(r"([^/\\:=@#]+)=(.+)", model, re.DOTALL)
    if given and not Path(model).exists():
        return given[1].strip(), given[2].strip()
    return model_words(model), model
