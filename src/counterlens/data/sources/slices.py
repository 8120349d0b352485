"""slices:RUN#K: the images of a confirmed slice of an audit; slices:RUN those of all of them.

The images are those of the audited data, with the same ids, labels and classes.
"""

from dataclasses import replace
from pathlib import Path

from counterlens.data.sets import subset
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.runs import Run, user_path

SPEC = "slices:"
NONE = "no slice"


def slices_by_id(folder: str) -> dict[str, str]:
    """The slice of each image that the audit of a folder searched; `no slice` for most."""
    rows = Run.open(user_path(Path(folder))).table("slice_images")
    if not rows:
        raise InputError(
            f"{SPEC}{folder}: the run has no slices. Make them: counterlens audit MODEL DATA "
            "--slices."
        )
    return {str(row["image"]): str(row["slice"]) or NONE for row in rows}


def members(folder: str, number: str) -> set[str]:
    """Ids of the images of a confirmed slice by its number, of all of them where it is empty."""
    own = slices_by_id(folder)
    slices = {
        i for i, name in own.items() if name != NONE and number in ("", name.partition(":")[0])
    }
    if not slices:
        names = sorted(set(own.values()) - {NONE})
        has = "; ".join(names) if names else "none"
        if not number:
            raise InputError(f"{SPEC}{folder}: no slice of the run was confirmed.")
        raise InputError(f"slice is {number}, and the confirmed slices are: {has}.")
    return slices


def open_slices(rest: str, *, name: str, size: tuple[int, int], channels: int) -> ImageSet:
    """`RUN#K`: the data of an audit, opened again as it was, restricted to a slice.

    A run may come from anyone and names its data: pictures elsewhere on this machine are opened
    only where names, labels and sizes of all files are those that the run recorded.
    """
    from counterlens.data.open import open_set  # which opens slices in its turn

    folder, _, number = rest.partition("#")
    chosen = members(folder, number)
    manifest = Run.open(user_path(Path(folder))).manifest
    settings = manifest["settings"]
    base = open_set(
        str(settings["data"]), limit=settings.get("limit"), seed=settings.get("seed", 0),
        size=size, channels=channels,
    )  # fmt: skip
    recorded = manifest.get("data_fingerprint")
    if not isinstance(recorded, dict) or recorded.get(base.name) != base.fingerprint:
        raise InputError(
            f"{settings['data']} is not the data of {folder}, or has changed since (their "
            "fingerprints differ). Audit it anew with slices, then use that run."
        )
    rows = [i for i, one in enumerate(base.ids) if str(one) in chosen]
    return replace(subset(base, rows), name=name)
