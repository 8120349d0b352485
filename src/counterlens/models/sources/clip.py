"""`clip:ARCH@TAG`: zero-shot classifiers from image–text models, through open_clip.

    clip:ViT-B-16@laion2b_s34b_b88k                  the thousand ImageNet classes
    clip:ViT-B-16@laion2b_s34b_b88k#cat,dog          classes of your own
    clip:ViT-B-16@weights.safetensors#cifar10        weights from a file, classes of CIFAR-10
    clip:ViT-B-16@TAG#=a smiling face|a sad face     attributes: texts as they are, raw cosines
    clip:FOLDER                                      a pair trained here, see clip_small

Paper: Radford et al. 2021, Learning Transferable Visual Models From Natural Language Supervision
       (clip2021); attributes as in digin2024, (20) and (21).
Differs: nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.errors import InputError, MissingExtra, first_line
from counterlens.label_spaces import CIFAR10
from counterlens.label_spaces.imagenet import imagenet_names
from counterlens.models.specs import ModelSpec, suggest
from counterlens.runs import user_path
from counterlens.types import Images, Interpolation, Logits, Preprocess


class ZeroShot(nn.Module):
    """An image encoder whose last layer are the embeddings of texts.

    Equation: clip2021 Fig. 1   logits = s · ⟨f(x), t_k⟩,  both of length one
    """

    def __init__(self, image: nn.Module, texts: Float[Tensor, "k d"], scale: float) -> None:
        super().__init__()
        self.image = image
        self.head = nn.Linear(texts.shape[1], len(texts), bias=False)
        with torch.no_grad():
            self.head.weight.copy_(scale * texts)

    def forward(self, x: Images) -> Logits:
        """Scaled cosines of images and texts."""
        logits: Tensor = self.head(normalize(self.image(x), dim=-1))
        return logits


def load_clip(spec: ModelSpec) -> Classifier:
    """The classifier of a clip: spec."""
    folder, _, listed = spec.name.partition("#")
    if spec.weights is None and user_path(folder).is_dir():
        from counterlens.models.sources.clip_small import load_pair

        return load_pair(user_path(folder), listed)
    open_clip = _library()
    if spec.name not in open_clip.list_models():
        near = suggest(spec.name, open_clip.list_models(), prefix="clip:")
        raise InputError(f"open_clip has no architecture {spec.name!r}{near}.")
    tag, _, wanted = (spec.weights or "").partition("#")
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(spec.name)[:4])
        raise InputError(f"{spec} names no weights, expected clip:{spec.name}@TAG or @FILE"
                         f"{f' (tags: {tags})' if tags else ''}.")  # fmt: skip
    try:
        model = open_clip.create_model(spec.name, pretrained=tag)
    except Exception as error:
        raise InputError(
            f"{spec}: the weights {tag!r} cannot be had ({first_line(error)}). "
            "Offline, name a file: clip:ARCH@FILE."
        ) from error
    texts, classes, raw = words_of(wanted)
    templates = ("{}",) if raw else tuple(_templates(open_clip))
    table = embed(model, open_clip.get_tokenizer(spec.name), texts, templates)
    scale = 1.0 if raw else float(model.logit_scale.detach().exp())
    return Classifier(
        ZeroShot(_ImageHalf(model), table, scale),
        classes,
        *_normalisation(model),
        preprocess=_preprocess(model),
        name=f"clip-{spec.name}",
        card={"zero_shot": True, "templates": len(templates)},
    )


def words_of(text: str) -> tuple[list[str], tuple[str, ...], bool]:
    """Texts to embed, names of the classes, and whether the texts are taken as they are.

    >>> words_of("cat,dog"), words_of("=smiling|sad")[2]
    ((['cat', 'dog'], ('cat', 'dog'), False), True)
    """
    if text.startswith("="):
        texts = [part.strip() for part in text[1:].split("|") if part.strip()]
        raw = True
    else:
        known = {"": imagenet_names(), "imagenet": imagenet_names(), "cifar10": CIFAR10}
        listed = known.get(text) or [part.strip() for part in text.split(",")]
        texts, raw = [part for part in listed if part], False
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise InputError(f"classes are {text!r}, expected two or more different ones, "
                         "such as #cat,dog or #=a smiling face|a sad face.")  # fmt: skip
    return texts, tuple(texts), raw


@torch.no_grad()
def embed(
    model: Any, tokenizer: Any, texts: Sequence[str], templates: Sequence[str]
) -> Float[Tensor, "k d"]:
    """One embedding per text: the mean over templates of unit vectors, normalised again.

    Equation: clip2021 §3.1.4   t_k = norm(Σ_j norm(g(template_j(class_k))))
    """
    model.eval()
    rows = []
    for text in texts:
        ids = tokenizer([template.format(text) for template in templates])
        vectors = normalize(model.encode_text(ids).float(), dim=-1)
        rows.append(normalize(vectors.mean(0), dim=-1))
    return torch.stack(rows)


class _ImageHalf(nn.Module):
    """The image half of a CLIP model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual = model.visual

    def forward(self, x: Images) -> Float[Tensor, "b d"]:
        out: Any = self.visual(x)
        embedding: Tensor = out[0] if isinstance(out, tuple) else out
        return embedding.float()


def _normalisation(model: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    visual = model.visual
    mean = tuple(getattr(visual, "image_mean", None) or (0.48145466, 0.4578275, 0.40821073))
    std = tuple(getattr(visual, "image_std", None) or (0.26862954, 0.26130258, 0.27577711))
    return mean, std


def _preprocess(model: Any) -> Preprocess:
    size = model.visual.image_size
    high, wide = (size, size) if isinstance(size, int) else size
    config = getattr(model.visual, "preprocess_cfg", None) or {}
    how: Interpolation = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
    squash = config.get("resize_mode") == "squash"
    return Preprocess((int(high), int(wide)), crop=None if squash else 1.0, interpolation=how)


def _templates(open_clip: Any) -> list[str]:
    """The eighty prompts of ImageNet that open_clip carries."""
    marker = "\0"
    return [make(marker).replace(marker, "{}") for make in open_clip.OPENAI_IMAGENET_TEMPLATES]


def _library() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise MissingExtra(
            "clip: needs open_clip. Install it: pip install 'counterlens[diffusion]'."
        ) from error
    return open_clip
