"""Model specs: `scheme:name[@weights]`, `FILE.py:FACTORY`, or a checkpoint folder.

Read as text alone; nothing is opened or imported, so a typing mistake is reported at once.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from counterlens import zoo
from counterlens.errors import InputError, nearest
from counterlens.models.file_kind import file_kind
from counterlens.runs import user_path

SCHEMES = {
    "zoo": "zoo:NAME",
    "timm": "timm:NAME[.TAG] or timm:NAME@FILE",
    "torchvision": "torchvision:NAME[@WEIGHTS or @FILE]",
    "hf": "hf:ORG/NAME[@REVISION] or hf:FOLDER",
    "clip": "clip:ARCH@TAG[#CLASSES] or clip:FOLDER[#CLASSES]",
    "robustbench": "robustbench:NAME@FILE",
    "onnx": "onnx:FILE",
    "torchscript": "torchscript:FILE",
    "export": "export:FILE.pt2",
    "repaired": "repaired:FOLDER",
}
PROGRAMS = {"ONNX": "onnx", "TorchScript": "torchscript", "torch.export": "export"}
"""The scheme that runs a file of each kind by itself, without an architecture."""
_GRAPHS = (".onnx", ".pt2", ".ts", ".torchscript")
_WEIGHTS = (".pt", ".pth", ".th", ".ckpt", ".safetensors", ".tar", ".bin")


@dataclass(frozen=True)
class ModelSpec:
    """A model spec taken apart.

    Args:
        scheme: a key of SCHEMES, or "file" (FILE.py:FACTORY), or "folder" (a checkpoint).
        name: what stands after the scheme; the path for "file" and "folder".
        weights: what stands after "@"; the factory for "file".
    """

    scheme: str
    name: str
    weights: str | None = None

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"{self.name}:{self.weights}"
        if self.scheme == "folder":
            return self.name
        return f"{self.scheme}:{self.name}" + (f"@{self.weights}" if self.weights else "")

    @property
    def weights_file(self) -> Path | None:
        """The weights as a path where they look like one, whether or not it exists."""
        if self.weights is None:
            return None
        path = user_path(self.weights)
        looks = path.suffix.lower() in _WEIGHTS or "/" in self.weights or "\\" in self.weights
        return path if looks or path.is_file() else None


def parse(text: str) -> ModelSpec:
    """Take a spec apart; refuse what no loader could mean.

    >>> parse("timm:resnet18.a1_in1k")
    ModelSpec(scheme='timm', name='resnet18.a1_in1k', weights=None)
    >>> parse("nets/mine.py:build")
    ModelSpec(scheme='file', name='nets/mine.py', weights='build')
    """
    text = text.strip()
    if not text:
        raise InputError(f"the model spec is empty, expected {_forms()}.")
    factory = re.fullmatch(r"(?P<path>.+\.py):(?P<name>[^:/\\]*)", text)
    if factory:
        return _factory(factory["path"], factory["name"])
    scheme = re.match(r"(?P<scheme>[A-Za-z][\w+-]+):(?P<rest>.*)", text)
    if scheme and scheme["scheme"] in SCHEMES:
        return _schemed(scheme["scheme"], scheme["rest"], text)
    if scheme and scheme["scheme"] == "object":  # what stands for it in the manifest of a run
        raise InputError(
            f"the model was an object ({scheme['rest'].partition('@')[0]}) in the memory of the "
            "program that made the run, so it cannot be loaded again. Give the object in Python, "
            f"or {_forms()}."
        )
    if user_path(text).is_dir() or ("#" in text and user_path(text.rpartition("#")[0]).is_dir()):
        return ModelSpec("folder", text)  # a # names one of its heads
    if Path(text).suffix.lower() in (*_WEIGHTS, *_GRAPHS) and user_path(text).is_file():
        kind = file_kind(user_path(text))
        if kind in PROGRAMS:
            return ModelSpec(PROGRAMS[kind], text)
    if scheme:
        near = suggest(scheme["scheme"], SCHEMES)
        raise InputError(f"{text}: unknown scheme {scheme['scheme']!r}{near}. Known: {_forms()}.")
    raise InputError(_not_a_model(text))


def check_spec(text: str) -> None:
    """Refuse at once, before torch is imported, a spec whose model or file is not there."""
    spec = parse(text)
    if spec.scheme == "zoo":
        name = spec.name.partition("#")[0]
        if name not in zoo.pairs():
            zoo.folder(name)
    elif spec.scheme == "file" and not user_path(spec.name).is_file():
        raise InputError(f"{spec}: the file {user_path(spec.name)} does not exist.")
    elif spec.scheme in PROGRAMS.values() and not user_path(spec.name).is_file():
        raise InputError(f"{user_path(spec.name)} does not exist, expected {SCHEMES[spec.scheme]}.")
    elif spec.scheme in ("timm", "torchvision", "robustbench"):
        file = spec.weights_file
        if file is not None and not file.is_file():
            raise InputError(f"{file} does not exist: give the file of weights after the @.")


def check_consent(spec: str, *, source: Path, trust: bool) -> str:
    """The spec of a model that a run folder names; one that runs code needs the user's consent.

    A run folder is data and may come from anyone: opening it runs nothing of theirs unasked. All
    other forms read weights and plain settings, unless `trust_remote_code` allows more.
    """
    if not trust and parse(spec).scheme == "file":
        raise InputError(
            f"{source} names the model {spec}, a Python file that would be run. A run folder may "
            "come from someone else, so this needs your consent: if you trust that file, add "
            "trust_remote_code=True."
        )
    return spec


def suggest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """' (did you mean …?)' for a mistyped name, or nothing when no known name is near.

    >>> suggest("tim", ["timm", "zoo"])
    ' (did you mean timm?)'
    """
    near = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(prefix + n for n in near)}?)" if near else ""


def _factory(path: str, name: str) -> ModelSpec:
    if not name.isidentifier():
        raise InputError(
            f"{path}:{name} names no factory, expected FILE.py:FACTORY with a Python name, "
            f"e.g. {path}:build."
        )
    return ModelSpec("file", path, name)


def _schemed(scheme: str, rest: str, text: str) -> ModelSpec:
    if scheme in (*PROGRAMS.values(), "repaired"):  # a path, which may hold an @
        if not rest:
            raise InputError(f"{text} is not whole, expected {SCHEMES[scheme]}.")
        return ModelSpec(scheme, rest)
    name, at, weights = rest.partition("@")
    if not name or (at and not weights):
        raise InputError(f"{text} is not whole, expected {SCHEMES[scheme]}.")
    return ModelSpec(scheme, name, weights or None)


def _forms() -> str:
    return ", ".join([*SCHEMES.values(), "FILE.py:FACTORY", "a checkpoint folder"])


def _not_a_model(text: str) -> str:
    suffix = Path(text).suffix.lower()
    if suffix == ".py":
        return f"{text} lacks a factory. Add the function that makes the model: {text}:FACTORY."
    if suffix in (*_WEIGHTS, *_GRAPHS):
        return _weights_alone(text)
    shipped = nearest(text, [*zoo.names(), *zoo.pairs()])
    if shipped:
        return f"no model {text!r} (did you mean zoo:{shipped}?), expected {_forms()}."
    hint = f" For a timm model type timm:{text}." if re.fullmatch(r"[\w.]+", text) else ""
    return f"no model {text!r}: there is no such folder, and it is none of {_forms()}.{hint}"


def _weights_alone(text: str) -> str:
    """What to do with a file of weights that was given as a model."""
    path = user_path(text)
    there = path.is_file()
    kind = file_kind(path) if there else "weights"
    if kind == "module":
        return (
            f"{text} holds a whole pickled module. Give it as FILE.py:FACTORY: def FACTORY(): "
            f'return counterlens.Classifier(torch.load("{text}", weights_only=False), '
            "classes=[…], size=224) (it runs the code in the file: only if you trust it)."
        )
    lack = "holds weights without an architecture" if there else "does not exist"
    return (
        f"{text} {lack}. Write a function that builds the "
        f"network and loads them, and give FILE.py:FACTORY; or name an architecture: "
        f"timm:NAME@{text}, torchvision:NAME@{text} or robustbench:NAME@{text}."
    )
