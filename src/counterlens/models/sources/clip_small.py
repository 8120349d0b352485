"""A small image–text pair at 32 pixels, in the Hugging Face layout of CLIP, with its card.

    clip:FOLDER                    the classes of its card
    clip:FOLDER#cat,dog            classes of your own
    clip:FOLDER#=a red car|a blue car
    zoo:NAME, zoo:NAME#…           a shipped one

Paper: Radford et al. 2021 (clip2021).
Differs: size; trained on captions made from class names and measured attributes.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion.libraries import libraries
from counterlens.models.sources.clip import ZeroShot, embed, words_of
from counterlens.runs import read_object, write_json
from counterlens.types import Images, Preprocess

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


class ImageTextPair(nn.Module):
    """Images and token ids to embeddings of both and the logarithm of the scale."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Images, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.image((x - MEAN[0]) / STD[0]), self.text(ids), self.model.logit_scale  # type: ignore[return-value]

    def image(self, x: Images) -> Float[Tensor, "b d"]:
        """Embeddings of normalised images."""
        model: Any = self.model
        out: Tensor = model.visual_projection(model.vision_model(pixel_values=x).pooler_output)
        return out

    def text(self, ids: Tensor) -> Float[Tensor, "b d"]:
        """Embeddings of texts."""
        model: Any = self.model
        out: Tensor = model.text_projection(model.text_model(input_ids=ids).pooler_output)
        return out

    def encode_text(self, ids: Tensor) -> Float[Tensor, "b d"]:
        """The name under which CLIP models have it."""
        return self.text(ids)


def build_pair(tokenizer: Any, sizes: Mapping[str, int], *, seed: int = 0) -> ImageTextPair:
    """A pair with random weights.

    Args:
        sizes: side, patch, width and layers of the image encoder, text and text_layers of the
            other, heads of both.
    """
    _, transformers = libraries()
    shared = {"num_attention_heads": sizes["heads"], "projection_dim": sizes["text"]}
    text = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=sizes["text"], intermediate_size=4 * sizes["text"],
        num_hidden_layers=sizes["text_layers"],
        max_position_embeddings=tokenizer.model_max_length, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **shared,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(
        image_size=sizes["side"], patch_size=sizes["patch"], hidden_size=sizes["width"],
        intermediate_size=3 * sizes["width"], num_hidden_layers=sizes["layers"], **shared,
    )  # fmt: skip
    config = transformers.CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=sizes["text"]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ImageTextPair(transformers.CLIPModel(config))


def save_pair(
    pair: ImageTextPair, tokenizer: Any, folder: Path, *, card: Mapping[str, Any]
) -> None:
    """Write the folder in half precision; the card last."""
    half = nn.Module.to(copy.deepcopy(pair.model).cpu(), torch.float16)
    half.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    write_json(folder / "card.json", {"schema": 1, **card})


def load_pair(folder: Path, wanted: str) -> Classifier:
    """The zero-shot classifier of a folder."""
    if not (folder / "card.json").is_file() or not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no image–text pair: it lacks card.json or config.json.")
    _, transformers = libraries()
    card = read_object(folder / "card.json")
    model = transformers.CLIPModel.from_pretrained(folder)
    pair = ImageTextPair(nn.Module.to(model.eval(), dtype=torch.float32))
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    texts, classes, raw = words_of(wanted or ",".join(card["classes"]))
    templates = ("{}",) if raw else tuple(t.replace("{}", "a {}") for t in captions.TEMPLATES)
    table = embed(pair, _tokens(tokenizer), texts, templates)
    scale = 1.0 if raw else float(model.logit_scale.detach().exp())
    side = int(model.config.vision_config.image_size)
    known = {**card, "zero_shot": True, "templates": len(templates)}
    return Classifier(
        ZeroShot(_Image(pair), table, scale), classes, MEAN, STD,
        preprocess=Preprocess((side, side)), name=str(card["name"]), card=known,
    )  # fmt: skip


def _tokens(tokenizer: Any) -> Any:
    def write(texts: Sequence[str]) -> Tensor:
        ids: Tensor = tokenizer(
            list(texts), padding="max_length", max_length=tokenizer.model_max_length,
            truncation=True, return_tensors="pt",
        ).input_ids  # fmt: skip
        return ids

    return write


class _Image(nn.Module):
    """The image half."""

    def __init__(self, pair: ImageTextPair) -> None:
        super().__init__()
        self.vision_model = pair.model.vision_model
        self.visual_projection = pair.model.visual_projection

    def forward(self, x: Images) -> Float[Tensor, "b d"]:
        vision: Any = self.vision_model
        projection: Any = self.visual_projection
        out: Tensor = projection(vision(pixel_values=x).pooler_output)
        return out
