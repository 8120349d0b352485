"""Classifiers from anywhere: `load(spec)`.

One file per source; its library is imported only when a spec asks for it.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from counterlens.models.specs import SCHEMES, ModelSpec, check_consent, check_spec, parse
from counterlens.progress import within
from counterlens.runs import user_path

if TYPE_CHECKING:
    from counterlens.classifier import Classifier  # torch, which a mistyped spec need not wait for


def load(spec: str, *, device: str = "auto", trust_remote_code: bool = False) -> "Classifier":
    """The classifier a spec names, ready for use: eval mode, weights frozen.

    Args:
        spec: `zoo:NAME[#CLASSES]`, `timm:NAME[.TAG]`, `timm:NAME@FILE`,
            `torchvision:NAME[@WEIGHTS]`, `hf:ORG/NAME`, `clip:ARCH@TAG[#CLASSES]`,
            `robustbench:NAME@FILE`, `onnx:FILE`, `torchscript:FILE`, `export:FILE.pt2`,
            `repaired:FOLDER`,
            `FILE.py:FACTORY` or a checkpoint folder.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        trust_remote_code: allow code that comes with the weights: a hub model's own Python files,
            pickled objects in a checkpoint. Off, such files are refused and nothing is run.

    >>> import counterlens as cl
    >>> cl.load("zoo:cifar10-plain-small", device="cpu").classes[:3]
    ('airplane', 'automobile', 'bird')
    """
    parsed = parse(spec)
    with within(f"loading {str(parsed).partition('#=')[0]}"):
        from counterlens.classifier import pick_device

        where = pick_device(device)
        classifier = _open(parsed, trust=trust_remote_code)
    classifier.card.setdefault("spec", str(parsed))
    return classifier.to(where).eval().requires_grad_(False)


def _open(spec: ModelSpec, *, trust: bool) -> "Classifier":
    match spec.scheme:
        case "zoo":
            from counterlens import zoo
            from counterlens.models.sources import checkpoint

            name, _, wanted = spec.name.partition("#")
            if name in zoo.pairs():
                from counterlens.models.sources.clip_small import load_pair

                return load_pair(zoo.pair(name), wanted)
            return checkpoint.load(zoo.folder(spec.name))
        case "folder":
            from counterlens.models.sources import checkpoint, finetuned, heads

            folder, head = _place(spec.name)
            if (folder / heads.CARD).is_file():
                return heads.load_heads(folder, head, trust=trust)
            if (folder / finetuned.CARD).is_file():
                return finetuned.load_finetuned(folder, trust=trust)
            return checkpoint.load(folder)
        case "file":
            from counterlens.models.sources.files import load_factory

            return load_factory(spec)
        case "clip":
            from counterlens.models.sources.clip import load_clip

            return load_clip(spec)
        case "onnx":
            from counterlens.models.sources.onnx import load_onnx

            return load_onnx(spec)
        case "torchscript":
            from counterlens.models.sources.programs import load_torchscript

            return load_torchscript(spec)
        case "export":
            from counterlens.models.sources.programs import load_export

            return load_export(spec)
        case "repaired":
            from counterlens.models.sources.repaired import load_repaired

            return load_repaired(user_path(spec.name), trust=trust)
        case scheme:  # timm, torchvision, hf, robustbench and new ones: sources/NAME.py, load_NAME
            source = import_module(f"counterlens.models.sources.{scheme}")
            loaded: Classifier = getattr(source, f"load_{scheme}")(spec, trust=trust)
            return loaded


def _place(name: str) -> tuple[Path, str | None]:
    """The folder of a checkpoint, inside a run of train where that is named; and a head of it."""
    whole = user_path(name)
    path, _, head = name.rpartition("#")
    folder = whole if whole.is_dir() else user_path(path)
    inner = folder / "model"
    known = any((folder / card).is_file() for card in ("card.json", "finetuned.json", "heads.json"))
    return (inner if not known and inner.is_dir() else folder), None if whole.is_dir() else head


__all__ = ["SCHEMES", "ModelSpec", "check_consent", "check_spec", "load", "parse"]
