"""How sets of pictures are named, and what can be refused before any library is loaded."""

import re
from pathlib import Path

from counterlens import zoo
from counterlens.errors import InputError, nearest
from counterlens.runs import Run, user_path

SCHEMES = (
    *("pack", "wds", "stack", "known", "hf", "sample", "noise", "corrupted", "slices", "object"),
)
FORMS = (
    "a folder of class folders, FILE.csv, FILE.jsonl, pack:FILE.npz, wds:SHARDS, stack:FILE, "
    "known:NAME@ROOT, "
    "hf:DATASET#SPLIT, sample:NAME, noise:KIND, corrupted:NAME,SEVERITY@SPEC or slices:RUN#K"
)
MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet")
NOISES = ("uniform", "gaussian", "bernoulli", "blobs", "smooth")


def name_of(spec: str) -> str:
    """The name of a set: given as NAME=SPEC, else the file's stem or the last word.

    >>> name_of("street=pack:a/b.npz"), name_of("pack:a/b.npz"), name_of("noise:uniform")
    ('street', 'b', 'uniform')
    >>> name_of("data/val/"), name_of("known:imagenet-9/mixed_rand@DIR"), name_of("hf:me/pets#test")
    ('val', 'imagenet-9-mixed_rand', 'pets')
    """
    return split(spec)[0]


def scheme_of(spec: str) -> str:
    """What kind of place a spec names.

    >>> scheme_of("blur=noise:smooth@test=pack:a.npz"), scheme_of("photos/")
    ('noise', 'path')
    """
    return split(spec)[1]


def split(spec: str) -> tuple[str, str, str]:
    """Name, scheme ("path" for files and folders) and the rest of a spec."""
    given = re.fullmatch(r"([^/\\:=@#+]+)=(.+)", spec, re.DOTALL)
    if given and not Path(spec).exists():
        return (given[1].strip(), *split(given[2])[1:])
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in SCHEMES:
        if not rest:
            raise InputError(f"{spec} names no set, expected {FORMS}.")
        return _short(scheme, rest), scheme, rest
    if colon and re.fullmatch(r"[a-z]{2,12}", scheme) and not Path(spec).exists():
        near = nearest(scheme, SCHEMES)
        hint = f" (did you mean {near}:{rest}?)" if near else ""
        raise InputError(f"{spec} starts with an unknown word {scheme}:{hint}, expected {FORMS}.")
    path = Path(spec)
    return (path.stem if path.suffix else path.resolve().name) or "images", "path", spec


def check_set(spec: str) -> None:
    """Refuse at once a set whose files are not there, or whose name is mistyped."""
    _, scheme, rest = split(spec)
    if scheme == "sample":
        check_sample(rest)
    elif scheme == "noise":
        check_noise(rest)
    elif scheme == "slices":
        Run.open(user_path(rest.partition("#")[0]))
    elif scheme == "path":
        _check_path(Path(rest))


def check_picture(text: str) -> None:
    """Refuse at once a picture file that is not there, or a place in such a set."""
    if Path(text).is_file():
        return
    suffix = Path(text).suffix.lower()
    if scheme_of(text) == "path" and "#" not in text and suffix and suffix not in MANIFESTS:
        raise InputError(f"no picture file {text}: there is no such file{_sibling(Path(text))}.")
    if scheme_of(text) != "hf":
        check_set(text.rpartition("#")[0] or text)


def check_sample(name: str) -> None:
    """Refuse a set that is not shipped."""
    shipped = sorted([*zoo.samples(), *zoo.DRAWN])
    if name not in shipped:
        if how := zoo.missing(name):
            raise InputError(f"sample:{name} is not installed; {how}.")
        near = nearest(name, shipped)
        hint = f" (did you mean sample:{near}?)" if near else ""
        known = ", ".join(f"sample:{one}" for one in shipped)
        raise InputError(f"sample:{name} is not shipped{hint}, expected one of {known}.")


def check_noise(text: str) -> None:
    """Refuse an unknown kind of noise."""
    kind, at, spec = text.partition("@")
    if kind not in NOISES or (at and (kind != "smooth" or not spec)):
        near = nearest(kind, NOISES) if kind not in NOISES else None
        hint = f" (did you mean noise:{near}?)" if near else ""
        known = ", ".join(f"noise:{k}" + ("@SPEC" if k == "smooth" else "") for k in NOISES)
        raise InputError(f"noise:{text} is not known{hint}, expected one of {known}.")


def _check_path(path: Path) -> None:
    suffix = path.suffix.lower()
    if not path.exists():
        known = [*zoo.samples(), *zoo.DRAWN]
        hint = f" (did you mean sample:{path}?)" if str(path) in known else _sibling(path)
        raise InputError(f"{path} does not exist{hint}, expected {FORMS}.")
    if path.is_dir() or suffix in MANIFESTS:
        return
    if suffix == ".npz":
        raise InputError(f"{path} is a packed file: type pack:{path}.")
    if suffix == ".tar":
        raise InputError(
            f"{path} is an archive: unpack it first, or, if it is a WebDataset shard with pictures "
            f"and their labels side by side, type wds:{path}."
        )
    if suffix in (".zip", ".gz", ".tgz", ".7z", ".rar"):
        raise InputError(f"{path} is an archive, expected {FORMS}. Unpack it first.")
    raise InputError(f"{path} is a file, expected {FORMS}.")


def _sibling(path: Path) -> str:
    """The file or folder beside a missing one whose name is nearest, as a question."""
    try:
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:
        beside = []
    near = nearest(path.name, beside)
    return f" (did you mean {path.parent / near}?)" if near else ""


def _short(scheme: str, rest: str) -> str:
    if scheme in ("wds", "stack"):
        return Path(rest).stem.partition("{")[0].strip("-_") or Path(rest).parent.name or scheme
    if scheme == "pack":
        return Path(rest.split(".npz+")[0]).name.removesuffix(".npz")
    if scheme == "hf":
        return rest.partition("#")[0].rstrip("/").rpartition("/")[2]
    if scheme == "slices":
        folder, _, number = rest.partition("#")
        return f"{Path(folder).name}-slice{'-' if number else 's'}{number}"
    short = rest.partition("@")[0].replace("/", "-")
    return short.replace(",", "-") if scheme == "corrupted" else short
