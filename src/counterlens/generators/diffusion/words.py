"""Words of a prompt: where their tokens lie, and which words of two prompts correspond.

A map of cross-attention has one column per token. Prompt-to-prompt hands the columns of one prompt
to another; here the hand-over is a matrix, one per image, so it is a product and can be inspected.

Paper: Hertz et al. 2023 (p2p2023); Augustin et al. 2024 (digin2024), appendix D, for words that
       are not the same number of tokens.
Differs: a word's tokens are located in the prompt itself, so repeated words and apostrophes do no
       harm. `reference=True` repeats what the paper's code does: dissimilar words get more weight,
       only the last token of a word is filled, and only the upper half of the heads is changed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from counterlens.errors import InputError
from counterlens.generators.diffusion.model import LatentDiffusion

Mixing = Float[Tensor, "b g n n"]
"""Source token × target token, for each of g groups of heads."""


CARRIES = 0.5
"""A token that moves so far, as a share of the most, carries the word that was overwritten."""


@dataclass(frozen=True)
class Word:
    """A word of a prompt and the tokens that write it."""

    text: str
    tokens: tuple[int, ...]


def words_of(model: LatentDiffusion, prompt: str) -> tuple[Word, ...]:
    """The words of a prompt with their places among the tokens; the start token is place 0.

    A word that the longest prompt cuts off has no tokens and is left out.
    """
    coded = model.tokenizer(
        prompt,
        return_offsets_mapping=True,
        truncation=True,
        max_length=model.tokenizer.model_max_length,
    )
    spans = coded.offset_mapping
    located = []
    for match in re.finditer(r"\S+", prompt):
        word = match[0].strip(',.;:!?"()')
        if not word:
            continue
        start = match.start() + match[0].index(word)
        end = start + len(word)
        tokens = tuple(i for i, (a, b) in enumerate(spans) if a < b and a < end and b > start)
        if tokens:
            located.append(Word(word, tokens))
    return tuple(located)


def phrases(model: LatentDiffusion, prompt: str, phrase: str) -> list[tuple[Word, ...]]:
    """Each place of a phrase in a prompt, as its words."""
    words = words_of(model, prompt)
    wanted = [word.lower() for word in phrase.split()]
    if not wanted:
        raise InputError("the word to replace is empty, expected one such as cat.")
    size = len(wanted)
    matches = [
        words[i : i + size]
        for i in range(len(words) - size + 1)
        if [word.text.lower() for word in words[i : i + size]] == wanted
    ]
    if not matches:
        raise InputError(
            f"the prompt {prompt!r} does not hold the words {phrase!r}; expected them in it, as in "
            f"'a photograph of a {phrase}'."
        )
    return matches


def replaced(prompt: str, words: tuple[str, str]) -> str:
    """The prompt with one phrase in place of another, everywhere; a or an follows it.

    >>> replaced("a photograph of a cat on an ape", ("cat", "otter"))
    'a photograph of an otter on an ape'
    """
    old, new = words
    pattern = re.compile(rf"(?<!\S)(?:(an?)(\s+))?{re.escape(old)}(?![\w-])", re.IGNORECASE)

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return new
        article = "an" if new[:1].lower() in "aeio" else "a"
        return f"{article}{match[2]}{new}"

    text, count = pattern.subn(put, prompt)
    if not count:
        raise InputError(
            f"the prompt {prompt!r} does not hold the words {old!r}; expected them in it, as in "
            f"'a photograph of a {old}'."
        )
    return text


def tokens_of(model: LatentDiffusion, prompt: str, phrase: str) -> tuple[int, ...]:
    """All tokens of all places of a phrase."""
    return tuple(
        token for words in phrases(model, prompt, phrase) for word in words for token in word.tokens
    )


def end_of(model: LatentDiffusion, prompt: str) -> int:
    """The place of the token that ends a prompt."""
    longest = int(model.tokenizer.model_max_length)
    return len(model.tokenizer(prompt, truncation=True, max_length=longest).input_ids) - 1


def carriers(model: LatentDiffusion, prompt: str, phrase: str) -> tuple[int, ...]:
    """The tokens that carry a phrase: its own, unless the text encoder keeps it elsewhere.

    A text encoder that learned from short captions may gather them in the end of the text, and
    encode a word's own token the same whatever the word. It is measured how far each token moves
    when the phrase is overwritten; where the phrase's own move little, those that move most count.
    """
    own = tokens_of(model, prompt, phrase)
    longest = int(model.tokenizer.model_max_length)
    ids = model.tokenizer(
        prompt, padding="max_length", max_length=longest, truncation=True, return_tensors="pt"
    ).input_ids
    other = ids.clone()
    other[0, list(own)] = ids[0, 1]  # any other word would do
    with torch.no_grad():
        a, b = model.text(torch.cat([ids, other]).to(model.device)).last_hidden_state.float()
    moved = (a - b).norm(dim=1).cpu()
    if moved[list(own)].mean() >= CARRIES * moved.max():
        return own
    return tuple(torch.nonzero(moved >= CARRIES * moved.max()).flatten().tolist())


def mixing(
    model: LatentDiffusion,
    source: Sequence[str],
    target: Sequence[str],
    words: Sequence[tuple[str, str]],
    *,
    reference: bool = False,
) -> Mixing:
    """For each pair of prompts the matrix that turns maps of the first into maps of the second.

    Equation: digin2024 §D   M_target = M_source W

    Args:
        words: which phrase of the source became which phrase of the target.
        reference: repeat the faults of the paper's code; then the heads are in two groups.
    """
    first, second = model.embed(source), model.embed(target)
    rows = [
        _matrix(model, s, t, pair, first[i], second[i], reference)
        for i, (s, t, pair) in enumerate(zip(source, target, words, strict=True))
    ]
    matrices = torch.stack(rows)[:, None]
    if reference:
        matrices = torch.cat([torch.eye(matrices.shape[-1]).expand_as(matrices), matrices], 1)
    return matrices.to(model.device)


def _matrix(
    model: LatentDiffusion,
    source: str,
    target: str,
    pair: tuple[str, str],
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "n d"],
    reference: bool,
) -> Float[Tensor, "n n"]:
    """One matrix: equal left of a phrase, shifted right of it, mixed inside."""
    old, new = phrases(model, source, pair[0]), phrases(model, target, pair[1])
    if len(old) != len(new):
        raise InputError(
            f"{pair[0]!r} is {len(old)} times in {source!r} and {pair[1]!r} {len(new)} times in "
            f"{target!r}, expected the same number."
        )
    size = len(first)
    place = torch.arange(size)
    shift = torch.zeros(size, dtype=torch.long)
    for here, there in zip(old, new, strict=True):
        end, end_new = here[-1].tokens[-1] + 1, there[-1].tokens[-1] + 1
        shift[end_new:] = end - end_new
    matrix = torch.zeros(size, size)
    matrix[(place + shift).clamp(0, size - 1), place] = 1  # beyond the end the last one repeats
    for here, there in zip(old, new, strict=True):
        filled = [token for word in there for token in word.tokens]
        matrix[:, filled] = 0
        for word, weights in zip(
            there, _weights(here, there, first, second, reference), strict=True
        ):
            _fill(matrix, here, word, weights, reference)
    return matrix


def _weights(
    old: Sequence[Word], new: Sequence[Word], first: Tensor, second: Tensor, reference: bool
) -> Float[Tensor, "new old"]:
    """How much of each old word a new word gets; its rows sum to 1.

    Equation: digin2024 §D   softmax_i(cos(e_i, e_j)); as many words: the best one-to-one pairing
    """
    alike = similarity(_means(new, second), _means(old, first))
    if len(old) != len(new):
        return ((1 - alike) if reference else alike).softmax(1)
    return _paired(alike)


def similarity(a: Float[Tensor, "m d"], b: Float[Tensor, "n d"]) -> Float[Tensor, "m n"]:
    """Cosines of all pairs."""
    cosines: Tensor = normalize(a, dim=1) @ normalize(b, dim=1).T
    return cosines.cpu()


def _paired(alike: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    order = 1e-6 * torch.eye(len(alike))  # words that are alike to the same degree keep their order
    rows, columns = linear_sum_assignment((alike + order).numpy(), maximize=True)
    paired = torch.zeros_like(alike)
    paired[torch.from_numpy(rows), torch.from_numpy(columns)] = 1
    return paired


def _fill(
    matrix: Tensor, old: Sequence[Word], word: Word, weights: Float[Tensor, "old"], reference: bool
) -> None:
    """Columns of a new word's tokens: old words' mean columns, or token by token where they fit."""
    tokens = word.tokens[-1:] if reference else word.tokens
    for other, weight in zip(old, weights.tolist(), strict=True):
        if weight == 1 and len(other.tokens) == len(word.tokens):
            for here, there in zip(other.tokens, word.tokens, strict=True):
                matrix[here, there] += 1
            continue
        for token in tokens:
            matrix[list(other.tokens), token] += weight / len(other.tokens)


def _means(words: Sequence[Word], embedded: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    return torch.stack([embedded[list(word.tokens)].mean(0) for word in words])
