"""Which images of a run are explained already, and in which runs.

An explanation belongs to an image where its run was made with the same weights, and took the image
from the same data set, from this run's own folder, or as one of this audit's mistakes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from counterlens.app.pieces import spec_of
from counterlens.app.site import Site
from counterlens.errors import CounterlensError
from counterlens.report.kit.parts import anchor
from counterlens.runs import Run, reading

_TABLES = ("counterfactuals", "maps", "edits", "uvce")


def explanations(here: Site, run: Run) -> dict[tuple[str, str], list[dict[str, str]]]:
    """By set and image: the runs that explain it, with the method and the place in their page."""
    explanations: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    weights = run.manifest.get("weights_hash")
    for name in here.folders.names() if weights else ():
        try:
            other = here.folders.run(name)
            facts = other.manifest
            if facts["command"] != "explain" or facts.get("weights_hash") != weights:
                continue
            ids = _ids(other, (other.folder / "run.json").stat().st_mtime_ns)
            method = str(facts["settings"].get("method", ""))
        except (CounterlensError, OSError):
            continue  # the list of runs says what is wrong with it
        for image, shown in _images(run, facts, ids):
            place = f"growth-{anchor(shown)}"
            explanations[image].append({"run": name, "method": method, "place": place})
    return explanations


def _images(
    run: Run, facts: Mapping[str, Any], ids: Sequence[str]
) -> Iterator[tuple[tuple[str, str], str]]:
    """Set and id of each image of a run that another run explains, and its id there."""
    names = [str(name) for name in run.manifest.get("data_fingerprint") or ()]
    if facts.get("audit") == run.folder.name:
        yield from (((names[0], own), own) for own in ids if names)
        return
    images = facts["settings"].get("images")
    for given in map(str, images if isinstance(images, list) else ()):
        spec, sign, _ = given.partition("#")
        for name in names:
            home = spec_of(run, name)
            if sign and spec == home:
                yield from (((name, own), own) for own in ids)
            elif not sign and home and Path(given).is_relative_to(Path(home).resolve()):
                own = str(Path(given).relative_to(Path(home).resolve()))
                yield (name, own), Path(given).name


@lru_cache(maxsize=256)
def _ids(run: Run, stamp: int) -> tuple[str, ...]:
    with reading(run):
        rows = [row for name in _TABLES for row in run.table(name)]
        return tuple(dict.fromkeys(str(row["id"]) for row in rows if "id" in row))
