"""`FILE.py:FACTORY`: any model, returned by the user's own function.

The factory takes no argument. It returns a Classifier, or a module that takes [0, 1] images; such
a module states its `input_size`, and may state its `classes`.
"""

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.checks import check_logits
from counterlens.classifier import Classifier, numbered, unwrap
from counterlens.errors import CounterlensError, InputError, first_line
from counterlens.models.specs import ModelSpec, suggest
from counterlens.runs import user_path
from counterlens.types import Preprocess


def load_factory(spec: ModelSpec) -> Classifier:
    """The classifier a user's function makes."""
    return as_classifier(factory_product(spec), str(spec), spec.weights or "")


def factory_product(spec: ModelSpec) -> object:
    """What a user's function returns, or the module that its name stands for."""
    path = user_path(spec.name)
    if not path.is_file():
        raise InputError(f"{spec}: the file {path} does not exist.")
    try:
        module = _imported(path)
    except CounterlensError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(_blame(f"{path} cannot be imported", path, error)) from error
    name = spec.weights or ""
    if not hasattr(module, name):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise InputError(
            f"{spec}: {path.name} has no {name!r}{suggest(name, public)}. It has: "
            f"{', '.join(public[:8]) or 'no functions'}."
        )
    product = getattr(module, name)
    if callable(product) and not isinstance(product, nn.Module):
        try:
            product = product()
        except CounterlensError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(_blame(f"{spec} failed", path, error)) from error
    return product


def as_classifier(product: object, source: str, name: str) -> Classifier:
    """Wrap what a factory returned; a Classifier stays as it is."""
    if isinstance(product, Classifier):
        return product
    if not isinstance(product, nn.Module):
        raise InputError(
            f"{source} returned {type(product).__name__}, expected a Classifier or a torch module "
            "that takes images in [0, 1]."
        )
    preprocess, channels = _input_of(product, source)
    outputs = _probe(product, (channels, *preprocess.size), source)
    several = bool(getattr(product, "multilabel", False))
    classes = _classes_of(product, outputs if several else max(outputs, 2), source)
    nothing, one = (0.0,) * channels, (1.0,) * channels
    return Classifier(
        product, classes, nothing, one, preprocess=preprocess, name=name, multilabel=several
    )


def _input_of(module: nn.Module, source: str) -> tuple[Preprocess, int]:
    preprocess = getattr(module, "preprocess", None)
    if isinstance(preprocess, Preprocess):
        return preprocess, 3
    size: Any = getattr(module, "input_size", None)
    if isinstance(size, int):
        size = (3, size, size)
    if isinstance(size, Sequence) and len(size) == 2:
        size = (3, *size)
    if (
        not isinstance(size, Sequence)
        or len(size) != 3
        or not all(isinstance(side, int) and side > 0 for side in size)
        or size[0] not in (1, 3)
    ):
        given = "does not say" if size is None else f"says {size!r} for"
        raise InputError(
            f"{source}: the module {given} its input size. Set module.input_size = 224, (height, "
            "width) or (channels, height, width), or return Classifier(net, classes, "
            "preprocess=Preprocess((224, 224)))."
        )
    return Preprocess((size[1], size[2])), size[0]


def _probe(module: nn.Module, shape: tuple[int, int, int], source: str) -> int:
    """How many logits the module gives an image; 1 where it is one number per image."""
    was_training = module.training
    module.eval()
    at = next((p.device for p in module.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            out = module(torch.full((2, *shape), 0.5, device=at))
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{source}: the module refuses images of shape {(2, *shape)} "
            f"({type(error).__name__}: {first_line(error)}). "
            "Set module.input_size to what it takes."
        ) from error
    finally:
        module.train(was_training)
    logits = out if isinstance(out, Tensor) else unwrap(out)
    if isinstance(logits, Tensor) and logits.shape in ((2,), (2, 1)):
        return 1
    check_logits(logits, rows=2, name=f"the output of {source}")
    return logits.shape[1]


def _classes_of(module: nn.Module, count: int, source: str) -> tuple[str, ...]:
    classes = getattr(module, "classes", None)
    if classes is None:
        return numbered(count)
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise InputError(f"{source}: module.classes is {classes!r}, expected a list of names.")
    if len(classes) != count:
        raise InputError(
            f"{source}: module.classes has {len(classes)} names, but the module returns {count} "
            "logits. Give one name per logit, in their order."
        )
    return tuple(str(c) for c in classes)


def _imported(path: Path) -> ModuleType:
    """Import a file under a name of its own, with its folder importable for its siblings."""
    whole = path.resolve()
    name = f"counterlens_user_{whole.stem}_{sha256(str(whole).encode()).hexdigest()[:12]}"
    module_spec = importlib.util.spec_from_file_location(name, whole)
    if module_spec is None or module_spec.loader is None:
        raise InputError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up here
    sys.path.insert(0, str(whole.parent))
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # nothing of ours is left in the user's folder
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(whole.parent))
    return module


def _blame(what: str, path: Path, error: BaseException) -> str:
    """One line with the last place in the user's own file."""
    own = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path.resolve()
    ]
    line = f" at line {own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError) and error.lineno:
        line = f" at line {error.lineno}"
    if isinstance(error, SystemExit):
        return f"{what}{line}: it called sys.exit({error.code!r}), expected a model."
    return f"{what}{line}: {type(error).__name__}: {first_line(error, 200)}"
