"""A small latent diffusion model from nothing: the shapes of the shipped one, or tinier.

The layout is that of Stable Diffusion, so the code that drives one drives the other: an
autoencoder, a CLIP text encoder with a byte-level BPE tokenizer trained on the captions, and a
UNet that attends to the text at two resolutions.

Paper: Rombach et al. 2022 (ldm2022).
Differs: the text encoder is trained with the UNet, from captions alone.
"""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from counterlens.generators.diffusion.libraries import libraries
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.schedule import named

START, END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a small model.

    Args:
        side: pixels along a side of the images.
        vae: channels of the autoencoder at each resolution; each but the first halves the side.
        vae_blocks, unet_blocks: residual blocks at each resolution.
        latents: channels of the latents.
        unet: channels of the UNet at each resolution; all attend to the text.
        heads: of attention, in UNet and text encoder.
        text: width of the text encoder.
        layers: of the text encoder.
        tokens: longest prompt, with its start and end.
        merges: of the tokenizer, beyond the bytes.
        schedule: "stable-diffusion" or "cosine".
    """

    side: int = 32
    vae: tuple[int, ...] = (96, 96)
    vae_blocks: int = 1
    latents: int = 4
    unet: tuple[int, ...] = (128, 224)
    unet_blocks: int = 1
    heads: int = 4
    text: int = 192
    layers: int = 3
    tokens: int = 24
    merges: int = 400
    schedule: str = "stable-diffusion"


def build(shape: TinyShape, captions: Sequence[str], *, seed: int = 0) -> LatentDiffusion:
    """A model with random weights and a tokenizer that knows the captions' words."""
    diffusers, transformers = libraries()
    tokenizer = make_tokenizer(captions, merges=shape.merges, tokens=shape.tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = diffusers.AutoencoderKL(
            sample_size=shape.side,
            block_out_channels=shape.vae,
            down_block_types=("DownEncoderBlock2D",) * len(shape.vae),
            up_block_types=("UpDecoderBlock2D",) * len(shape.vae),
            layers_per_block=shape.vae_blocks,
            latent_channels=shape.latents,
            norm_num_groups=_groups(shape.vae),
            mid_block_add_attention=False,
            scaling_factor=1.0,
        )
        unet = diffusers.UNet2DConditionModel(
            sample_size=shape.side // 2 ** (len(shape.vae) - 1),
            in_channels=shape.latents,
            out_channels=shape.latents,
            block_out_channels=shape.unet,
            down_block_types=("CrossAttnDownBlock2D",) * len(shape.unet),
            up_block_types=("CrossAttnUpBlock2D",) * len(shape.unet),
            layers_per_block=shape.unet_blocks,
            cross_attention_dim=shape.text,
            attention_head_dim=shape.heads,
            norm_num_groups=_groups(shape.unet),
        )
        text = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=len(tokenizer),
                hidden_size=shape.text,
                intermediate_size=4 * shape.text,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                max_position_embeddings=shape.tokens,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return LatentDiffusion(vae, unet, text, tokenizer, named(shape.schedule), "small")


def make_tokenizer(captions: Sequence[str], *, merges: int, tokens: int) -> Any:
    """A CLIP tokenizer whose byte pairs were merged on the captions; any text can be written.

    Equation: bpe2016 Alg. 1   merge the most frequent pair of symbols, again and again
    """
    _, transformers = libraries()
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    empty = transformers.CLIPTokenizer(vocab={START: 0, END: 1}, merges=[]).backend_tokenizer
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.normalizer, learner.pre_tokenizer = empty.normalizer, empty.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet) + merges,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    learner.train_from_iterator(sorted(captions), trainer)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        learner.model.save(folder)
        lines = (Path(folder) / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split(" ")) for line in lines if not line.startswith("#version")]
    words = [*alphabet, *(letter + "</w>" for letter in alphabet)]
    words += ["".join(pair) for pair in pairs]
    words = [*dict.fromkeys(words), START, END]
    return transformers.CLIPTokenizer(
        vocab={word: i for i, word in enumerate(words)}, merges=pairs, model_max_length=tokens
    )


def _groups(widths: Sequence[int]) -> int:
    """The most groups, up to 32, that every width can be cut into."""
    return max(n for n in range(1, 33) if all(width % n == 0 for width in widths))
