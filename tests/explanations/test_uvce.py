"""Universal counterfactuals on a tiny random generator: machinery and laws, not pictures.

Oracles: diffusers' own attention (maps recomputed from its processor), SciPy's filters and a
literal double loop for masks, sums written out for distances, finite differences for gradients,
laws (identical prompts change nothing, blending in full is the image, never below the start).
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage

from counterlens.ball import row_seeds
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals import masks as m
from counterlens.explanations.counterfactuals.uvce import (
    ERROR,
    NEURON,
    UVCE,
    Change,
    EditSettings,
    blending,
    distance,
    hooks_of,
    prepare,
    search_schedule,
    uvce,
)
from counterlens.generators.diffusion.attention import Watch, cross_layers, inject, mixed
from counterlens.generators.diffusion.ddim import Hooks, ddim, guided_noise, repeated, step
from counterlens.generators.diffusion.null_text import backwards, invert
from counterlens.generators.diffusion.optimise import ChainSettings, Term, ascend, begin
from counterlens.generators.diffusion.words import (
    carriers,
    end_of,
    mixing,
    phrases,
    replaced,
    tokens_of,
    words_of,
)
from counterlens.objectives import entry
from diffusion_models import tiny_model

diffusers = pytest.importorskip("diffusers")
pytestmark = pytest.mark.usefixtures("one_thread")

CHAIN = ChainSettings(steps=4, updates=3, cuts=2, last=2)
SHORT = EditSettings(chain=CHAIN, inner=3)
CAT, BRIDGE = "a photograph of a cat", "a photograph of a steel arch bridge"
TO_BRIDGE, SAME = Change(BRIDGE, ("cat", "steel arch bridge")), Change(CAT, ("cat", "cat"))


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def x():
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def term():
    weight = torch.randn(3 * 16 * 16, 5, generator=torch.Generator().manual_seed(0)) / 10
    return Term(entry(lambda x: (x.flatten(1) @ weight).log_softmax(1), torch.tensor([1, 2])), 16)


def half(count: int = 2) -> torch.Tensor:
    mask = torch.zeros(count, 1, 16, 16)
    mask[..., 4:12, 4:12] = 1
    return mask


# words


def test_words_know_their_tokens_even_with_apostrophes_and_repeats(model):
    words = words_of(model, "A cat, a potter's wheel. A cat")
    assert [word.text for word in words] == ["A", "cat", "a", "potter's", "wheel", "A", "cat"]
    ids = model.tokenizer("A cat, a potter's wheel. A cat").input_ids
    for word in words:
        text = model.tokenizer.decode([ids[t] for t in word.tokens]).replace(" ", "")
        assert text == word.text.lower()
    used = [token for word in words for token in word.tokens]
    assert len(set(used)) == len(used)


def test_a_phrase_is_found_everywhere_or_refused(model):
    assert len(phrases(model, "a cat and a cat", "Cat")) == 2
    assert len(tokens_of(model, BRIDGE, "steel arch bridge")) >= 3
    with pytest.raises(InputError, match="does not hold the words 'dog'"):
        tokens_of(model, CAT, "dog")
    with pytest.raises(InputError, match="does not hold the words 'dog'"):
        replaced(CAT, ("dog", "cat"))
    assert replaced("a cat, a category", ("cat", "ape")) == "an ape, a category"


def test_identical_prompts_give_the_identity(model):
    for prompt, thing in ((CAT, "cat"), (BRIDGE, "steel arch bridge"), ("a cat cat", "cat cat")):
        found = mixing(model, [prompt], [prompt], [(thing, thing)])
        torch.testing.assert_close(found[0, 0], torch.eye(12), rtol=0, atol=0)


def test_words_right_of_the_thing_are_shifted_and_the_end_repeats(model):
    source, target = "a cat on a wheel", "a steel arch bridge on a wheel"
    found = mixing(model, [source], [target], [("cat", "steel arch bridge")])[0, 0]
    old = {word.text: word.tokens for word in words_of(model, source)}
    new = {word.text: word.tokens for word in words_of(model, target)}
    for word in ("on", "wheel"):
        for here, there in zip(old[word], new[word], strict=True):
            assert found[here, there] == 1
    for word in ("steel", "arch", "bridge"):  # every token of every word
        for token in new[word]:
            assert found[list(old["cat"]), token].sum().item() == pytest.approx(1)
    assert found.sum(0).tolist() == pytest.approx([1.0] * 12)
    back = mixing(model, [target], [source], [("steel arch bridge", "cat")])[0, 0]
    assert back[-1, -1] == 1 and back[-1].sum() > 1  # past the end the last one repeats


def test_a_more_similar_word_gets_more_weight_and_the_reference_reverses_it(model):
    source, target = "a steel arch bridge", "a red bridge"
    pair = [("steel arch bridge", "red bridge")]
    ours, theirs = (mixing(model, [source], [target], pair, reference=r)[0] for r in (False, True))
    old = {word.text: list(word.tokens) for word in words_of(model, source)}
    new = {word.text: list(word.tokens) for word in words_of(model, target)}
    first, second = model.embed([source])[0], model.embed([target])[0]
    for word in ("red", "bridge"):
        token = new[word][-1]
        here = second[new[word]].mean(0)
        alike = [torch.cosine_similarity(here, first[t].mean(0), 0).item() for t in old_places(old)]
        weight = [ours[0, t, token].sum().item() for t in old_places(old)]
        wrong = [theirs[1, t, token].sum().item() for t in old_places(old)]
        assert np.argsort(alike).tolist() == np.argsort(weight).tolist()
        assert np.argsort(alike).tolist() == np.argsort(wrong)[::-1].tolist()
        expected = torch.tensor(alike).softmax(0)
        assert weight == pytest.approx(expected.tolist(), abs=1e-5)
    assert torch.equal(theirs[0], torch.eye(12))  # the lower half of the heads is left alone


def old_places(old):
    return [old[word] for word in ("steel", "arch", "bridge")]


def test_the_reference_fills_only_the_last_token(model):
    source, target = "a steel arch bridge", "a photographic wheel"
    pair = [("steel arch bridge", "photographic wheel")]
    tokens = words_of(model, target)[1].tokens
    assert len(tokens) > 1
    theirs = mixing(model, [source], [target], pair, reference=True)[0, 1]
    ours = mixing(model, [source], [target], pair)[0, 0]
    assert theirs[:, list(tokens[:-1])].abs().sum() == 0 and theirs[:, tokens[-1]].sum() > 0.99
    assert (ours[:, list(tokens)].sum(0) > 0.99).all()


def test_groups_of_heads_have_their_own_matrix(rng):
    maps = torch.rand(2, 4, 9, 5, generator=rng)
    mix = torch.rand(2, 2, 5, 5, generator=rng)
    found = mixed(maps, mix)
    torch.testing.assert_close(found[1, 1], maps[1, 1] @ mix[1, 0])
    torch.testing.assert_close(found[1, 2], maps[1, 2] @ mix[1, 1])


class Gathering(torch.nn.Module):
    """A text encoder that keeps what it read at the end of the text, or at each word."""

    def __init__(self, model, at_end):
        super().__init__()
        self.end, self.at_end = model.tokenizer.eos_token_id, at_end

    def forward(self, ids):
        own = ids[..., None].float()
        end = torch.zeros_like(own)
        for i, row in enumerate(ids):
            place = (row == self.end).nonzero()[0, 0]
            end[i, place] = row[:place].sum().float()
        states = end if self.at_end else own
        return SimpleNamespace(last_hidden_state=states.expand(-1, -1, 4))


@pytest.mark.parametrize("at_end", [True, False])
def test_the_tokens_that_carry_a_word_are_found(model, at_end):
    asked = replace(model, text=Gathering(model, at_end))
    own = tokens_of(model, CAT, "cat")
    assert carriers(asked, CAT, "cat") == ((end_of(model, CAT),) if at_end else own)
    assert end_of(model, CAT) == own[-1] + 1


# attention


def given(model, prompts, steps=4):
    return begin(model, prompts, row_seeds(len(prompts), 0), steps=steps)


def test_watching_changes_nothing_and_sees_what_diffusers_computes(model):
    start = given(model, [CAT, BRIDGE])
    watch = Watch(model, 2, 3)
    plain = ddim(model, start.z, start.cond, start.null)
    seen = ddim(model, start.z, start.cond, start.null, hooks=Hooks(around=watch))
    torch.testing.assert_close(seen.z, plain.z, rtol=1e-5, atol=1e-5)
    assert len(watch.maps.steps) == 3 and len(watch.maps.steps[0]) == len(cross_layers(model)) == 7

    caught = {}

    class Theirs(diffusers.models.attention_processor.AttnProcessor):
        def __call__(self, attn, hidden_states, encoder_hidden_states=None, **more):
            query = attn.head_to_batch_dim(attn.to_q(hidden_states))
            key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))
            caught[attn] = attn.get_attention_scores(query, key).unflatten(0, (-1, attn.heads))
            return super().__call__(attn, hidden_states, encoder_hidden_states)

    layers = cross_layers(model)
    before = {name: layer.processor for name, layer in layers.items()}
    for layer in layers.values():
        layer.processor = Theirs()
    with torch.no_grad():
        time = model.schedule.times(4)[0]
        both = torch.cat([start.null[:, 0], start.cond[:, 0]])
        model.noise(torch.cat([start.z, start.z]), time, both)
    for name, layer in layers.items():
        layer.processor = before[name]
        mine = watch.maps.steps[0][name]
        torch.testing.assert_close(mine, caught[layer][2:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.sum(-1), torch.ones_like(mine.sum(-1)))


@pytest.mark.parametrize("guidance", [3.0, 1.0])
def test_injection_with_identical_prompts_is_the_identity(model, guidance):
    start = given(model, [CAT, BRIDGE])
    watch = Watch(model, 2, 4)
    kwargs = {"guidance": guidance}
    plain = ddim(model, start.z, start.cond, start.null, hooks=Hooks(around=watch), **kwargs)
    mix = mixing(model, [CAT, BRIDGE], [CAT, BRIDGE], [("cat", "cat"), ("bridge", "bridge")])
    for counts in ([4, 4], [1, 3], [0, 2]):
        around = inject(model, watch.maps, mix, counts)
        again = ddim(model, start.z, start.cond, start.null, hooks=Hooks(around=around), **kwargs)
        torch.testing.assert_close(again.z, plain.z, rtol=1e-4, atol=1e-4)


def test_injection_with_other_prompts_changes_only_the_images_that_have_it(model):
    start, other = given(model, [CAT, CAT]), given(model, [BRIDGE, BRIDGE])
    watch = Watch(model, 2, 4)
    ddim(model, start.z, start.cond, start.null, hooks=Hooks(around=watch))
    mix = mixing(model, [CAT] * 2, [BRIDGE] * 2, [("cat", "steel arch bridge")] * 2)
    plain = ddim(model, start.z, other.cond, other.null)
    put = ddim(
        model,
        start.z,
        other.cond,
        other.null,
        hooks=Hooks(around=inject(model, watch.maps, mix, [2, 0])),
    )
    torch.testing.assert_close(put.z[1], plain.z[1], rtol=1e-5, atol=1e-5)
    assert (put.z[0] - plain.z[0]).abs().max() > 1e-4
    with pytest.raises(ValueError, match="maps of 4 steps"):
        inject(model, watch.maps, mix, [5, 0])


# inversion


def test_null_texts_bring_the_chain_back_to_the_image(model, x):
    plain = invert(model, x, [CAT] * 2, steps=4, inner=0)
    found = invert(model, x, [CAT] * 2, steps=4, inner=8, rate=0.3)
    error = [(one.path[:, -1] - one.latents).square().mean().item() for one in (plain, found)]
    assert error[1] < 0.5 * error[0]
    assert found.error.shape == (4, 2) and found.path.shape[:2] == (2, 5)
    again = ddim(model, found.inputs.z, found.inputs.cond, found.inputs.null)
    torch.testing.assert_close(again.z, found.path[:, -1], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        images = model.decode(again.originals[-1])
    torch.testing.assert_close(images, found.images, rtol=1e-4, atol=1e-4)


def test_inversion_starts_where_walking_backwards_ends(model, x):
    latents = model.encode(x)
    marks = backwards(model, latents, model.embed([CAT] * 2), 4)
    scheduler = diffusers.DDIMInverseScheduler.from_config(
        {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012,
         "beta_schedule": "scaled_linear", "clip_sample": False, "set_alpha_to_one": False}
    )  # fmt: skip
    alphas = scheduler.alphas_cumprod
    z = latents
    for time, earlier in ((1, -1), (251, 1), (501, 251), (751, 501)):
        noise = model.noise(z, time, model.embed([CAT] * 2))
        a = alphas[0] if earlier < 0 else alphas[earlier]
        clean = (z - (1 - a).sqrt() * noise) / a.sqrt()
        z = alphas[time].sqrt() * clean + (1 - alphas[time]).sqrt() * noise
    torch.testing.assert_close(marks[-1], z, rtol=1e-4, atol=1e-4)
    assert len(marks) == 5


def test_an_image_is_inverted_alike_alone(model, x):
    both = invert(model, x, [CAT, BRIDGE], steps=4, inner=4)
    alone = invert(model, x[1:], [BRIDGE], steps=4, inner=4)
    torch.testing.assert_close(both.inputs.null[1:], alone.inputs.null, rtol=1e-3, atol=1e-3)


def test_inversion_refuses_images_of_another_size(model):
    with pytest.raises(InputError, match="expected 16 × 16"):
        invert(model, torch.rand(1, 3, 17, 16), [CAT])
    with pytest.raises(InputError, match="1 captions for 2 images"):
        invert(model, torch.rand(2, 3, 16, 16), [CAT])


# masks


@pytest.mark.parametrize("side", [32, 64, 512])
def test_morphology_is_scipys(side, rng):
    raw = (torch.rand(1, 1, side // 8, side // 8, generator=rng) > 0.6).double()
    mask = raw.repeat_interleave(8, 2).repeat_interleave(8, 3)
    erosion, dilation, blur = (max(1, round(k * side / 512)) for k in (3, 20, 45))
    theirs = mask[0, 0].numpy()
    theirs = ndimage.minimum_filter(theirs, erosion, mode="constant", cval=np.inf)
    theirs = ndimage.maximum_filter(theirs, dilation, mode="constant", cval=-np.inf)
    sigma = 30 * side / 512
    theirs = ndimage.gaussian_filter(theirs, sigma, mode="mirror", radius=blur // 2)
    np.testing.assert_allclose(m.softened(mask)[0, 0].numpy(), theirs, atol=1e-9)


def test_attention_of_the_first_half_is_averaged_by_hand(model):
    start = given(model, [CAT, BRIDGE], steps=5)
    watch = Watch(model, 2, 4)
    ddim(model, start.z, start.cond, start.null, hooks=Hooks(around=watch))
    assert m.nearest_side(watch.maps, 16) == 8 and m.nearest_side(watch.maps) == 4
    total, number = torch.zeros(64), 0
    for early in (0, 1, 2):  # 1 − i / 4 ≥ 1/2
        for found in watch.maps.steps[early].values():
            if found.shape[2] == 64:
                for head in range(found.shape[1]):
                    total += found[1, head][:, [5, 6]].mean(1)
                    number += 1
    mine = m.attended(m.averaged(watch.maps, steps=5, places=16), [[1], [5, 6]])[1]
    torch.testing.assert_close(mine.flatten(), total / number)


def test_soft_maps_are_squashed_as_written():
    found = torch.tensor([[[0.2, 0.1], [0.05, 0.0]]]) + 0.3
    soft = m.soft_map(found, 2)[0, 0]
    expected = [[1.0, ((0.5 - 0.3) / 0.7) ** 0.5], [0.0, 0.0]]
    torch.testing.assert_close(soft, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_masked_means_are_literal_and_do_not_grow_with_the_image(rng):
    a, b = torch.rand(2, 2, 3, 6, 6, generator=rng, dtype=torch.float64)
    mask = torch.rand(2, 1, 6, 6, generator=rng, dtype=torch.float64)
    total = 0.0
    for c in range(3):
        for i in range(6):
            for j in range(6):
                total += (mask[1, 0, i, j] * (a[1, c, i, j] - b[1, c, i, j]) ** 2).item()
    assert m.masked_mean(mask, a, b)[1].item() == pytest.approx(total / 108)

    def twice(t):
        return t.repeat_interleave(2, 2).repeat_interleave(2, 3)

    torch.testing.assert_close(
        m.masked_mean(twice(mask), twice(a), twice(b)), m.masked_mean(mask, a, b)
    )


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.zeros(1, 1, 8, 8), "is empty"),
        (torch.ones(1, 1, 8, 8), "is full"),
        (torch.full((1, 1, 8, 8), 2.0), "outside 0 … 1"),
        (torch.rand(2, 1, 8, 8), r"expected \(1, 1, height, width\)"),
    ],
)
def test_masks_that_keep_nothing_apart_are_refused(mask, words):
    with pytest.raises(InputError, match=words):
        m.check_mask(mask, images=1)


# the edit


def test_blending_follows_its_law(rng):
    path = torch.randn(3, 5, 2, 4, 4, generator=rng)
    z = torch.randn(3, 2, 4, 4, generator=rng)
    held = torch.rand(3, 1, 4, 4, generator=rng)
    enter = blending(path, held, [2, 1, 0])
    first, second, third = (enter(step, z) for step in (0, 1, 2))
    torch.testing.assert_close(first[0], held[0] * path[0, 0] + (1 - held[0]) * z[0])
    torch.testing.assert_close(second[0], held[0] * path[0, 1] + (1 - held[0]) * z[0])
    assert torch.equal(second[1:], z[1:]) and torch.equal(third, z)


def test_holding_everything_in_all_steps_gives_the_image_back(model, x):
    settings = EditSettings(chain=CHAIN, inner=3, inject=(0.0,), blend=(1.0,))
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=settings)
    held = torch.ones(2, 1, 16, 16)
    mix = mixing(model, [CAT] * 2, [CAT] * 2, [("cat", "cat")] * 2)
    hooks = hooks_of(model, ready, mix, held, [(0.0, 1.0)] * 2, settings)
    inputs = ready.inversion.inputs
    other = repeated(model.embed([BRIDGE] * 2), 4)
    chain = ddim(model, inputs.z, other, inputs.null, hooks=Hooks(enter=hooks.enter))
    plain = ddim(model, inputs.z, other, inputs.null)
    last = ready.inversion.path[:, 3]  # only the last step is the new prompt's own
    time = model.schedule.times(4)[3]
    noise = guided_noise(model, last, time, other[:, 3], inputs.null[:, 3], 3.0)
    alphas = model.schedule.alpha(time), model.schedule.final
    torch.testing.assert_close(chain.z, step(last, noise, *alphas), rtol=1e-4, atol=1e-4)
    near = (chain.z - ready.inversion.path[:, 4]).square().mean()
    assert near < (plain.z - ready.inversion.path[:, 4]).square().mean()


def test_penalties_are_weighted_means_over_what_is_held(model, x, rng):
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=SHORT)
    held = 1 - ready.masks
    z = torch.randn(2, 4, 8, 8, generator=rng)
    image = torch.rand(2, 3, 16, 16, generator=rng)
    found = distance(ready, held, SHORT)(z, image)
    small = m.resized(held, (8, 8))
    pixels = (held[1] * (image[1] - x[1]) ** 2).sum() / (3 * 16 * 16)
    latents = (small[1] * (z[1] - ready.inversion.latents[1]) ** 2).sum() / (4 * 8 * 8)
    assert found[1].item() == pytest.approx((25 * latents + 250 * pixels).item(), rel=1e-5)


def test_the_best_schedule_is_taken_for_each_image(model, x, term):
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=SHORT)
    held = 1 - ready.masks
    mix = mixing(model, [CAT] * 2, [BRIDGE] * 2, [("cat", "steel arch bridge")] * 2)
    given_ = ready.inversion.inputs
    start = type(given_)(given_.z, repeated(model.embed([BRIDGE] * 2), 4), given_.null)
    penalty = distance(ready, held, SHORT)
    chosen = search_schedule(model, start, [term], ready, mix, held, penalty, SHORT)
    worth = {}
    for trial in SHORT.schedules:
        only = EditSettings(chain=ChainSettings(steps=4, updates=0, last=1), inject=(trial[0],),
                            blend=(trial[1],))  # fmt: skip
        one = uvce(
            model, ready, [term], [TO_BRIDGE] * 2, settings=only, seeds=row_seeds(2, 0)
        )  # fmt: skip
        worth[trial] = one.start
    for i in range(2):
        best = max(worth[trial][i].item() for trial in SHORT.schedules)
        assert worth[chosen[i]][i].item() == pytest.approx(best, abs=1e-4)
    assert len(SHORT.schedules) == 6


def test_an_edit_is_never_worse_than_prompt_to_prompt_alone(model, x, term):
    looks = []
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, settings=SHORT)
    found = uvce(
        model, ready, [term], [TO_BRIDGE] * 2, settings=SHORT, seeds=row_seeds(2, 0),
        callback=lambda k, look: looks.append(k),
    )  # fmt: skip
    assert (found.scores > found.start).all() and looks == [0, 1, 2, 3]
    assert found.images.shape == found.reconstruction.shape == found.start_images.shape == x.shape
    assert found.masks.shape == (2, 1, 16, 16) and 0 <= found.masks.min() <= found.masks.max() <= 1
    assert set(found.maps[0]) == {"a", "photograph", "of", "a 2", "cat", "(end)"}
    assert all(one.max().item() == pytest.approx(1) for one in found.maps[0].values())
    assert all(pair in SHORT.schedules for pair in found.schedule)


@pytest.mark.parametrize("keep", ["background", "object"])
def test_what_is_held_changes_less_than_the_rest(model, x, keep):
    strong = EditSettings(
        chain=ChainSettings(steps=4, updates=6, text_rate=0.1, noise_rate=0.01, cuts=0),
        keep=keep, inner=3, inject=(0.3,), blend=(0.3,), pixel_weight=25000.0, latent_weight=0.0,
    )  # fmt: skip
    weight = torch.ones(3 * 16 * 16, 1)
    bright = Term(entry(lambda x: x.flatten(1) @ weight / 100, torch.tensor([0, 0])), 16)
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=strong)
    found = uvce(
        model, ready, [bright], [SAME] * 2, settings=strong, seeds=row_seeds(2, 0)
    )  # fmt: skip
    held = found.masks if keep == "object" else 1 - found.masks
    before = (held * (found.start_images - x).square()).sum()
    after = (held * (found.images - x).square()).sum()
    assert after < before


def test_gradients_through_injection_blending_and_penalty_are_exact(model, x, term):
    """The gradient of the whole chain against finite differences, and with recomputed steps."""
    settings = EditSettings(chain=ChainSettings(steps=3, updates=1, cuts=0, last=2), inner=2)
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=settings)
    held = 1 - ready.masks
    mix = mixing(model, [CAT] * 2, [BRIDGE] * 2, [("cat", "steel arch bridge")] * 2)
    hooks = hooks_of(model, ready, mix, held, [(0.5, 0.0), (0.3, 0.3)], settings)
    penalty = distance(ready, held, settings)
    given_ = ready.inversion.inputs
    cond = repeated(model.embed([BRIDGE] * 2), 3).clone()

    def worth(z, c, null, stored=None):
        chain = ddim(model, z, c, null, hooks=hooks, stored=stored, last=2)
        clean = chain.originals[-1]
        image = model.decode(clean)
        return (term.objective(image) - penalty(clean, image)).sum()

    leaves = [one.detach().clone().requires_grad_() for one in (given_.z, cond, given_.null)]
    whole = torch.autograd.grad(worth(*leaves), leaves)
    again = torch.autograd.grad(worth(*leaves, stored=0), leaves)
    for a, b in zip(whole, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert a.abs().amax() > 0
    generator = torch.Generator().manual_seed(1)
    for number, grad in enumerate(whole):
        way = torch.randn(grad.shape, generator=generator)
        way = way / way.norm()
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                moved = list(leaves)
                moved[number] = leaves[number] + sign * 3e-3 * way
                ends.append(worth(*moved).item())
        slope = (ends[0] - ends[1]) / 6e-3
        assert slope == pytest.approx((grad * way).sum().item(), rel=0.05, abs=5e-3)


@pytest.mark.parametrize(("side", "noisy"), [(16, True), (8, False)])
def test_small_images_get_more_noise_in_their_cut_outs(model, x, side, noisy):
    """Asked about crops of one grey image: their spread is the noise."""
    spread = []

    def table(crops):
        spread.append((crops - crops.mean((2, 3), keepdim=True)).std().item())
        return 0 * crops.flatten(1)[:, :1]

    settings = EditSettings(
        chain=ChainSettings(steps=1, updates=1, cuts=4, sigma=0.0, last=1), inject=(0.0,),
        blend=(0.0,), inner=0, small_sigma=10.0,
    )  # fmt: skip
    grey = Term(entry(table, torch.zeros(2, dtype=torch.long)), side)
    ready = prepare(model, x, [CAT] * 2, ["cat"] * 2, masks=half(), settings=settings)
    uvce(model, ready, [grey], [SAME] * 2, settings=settings, seeds=row_seeds(2, 0))
    assert (max(spread) > 5) == noisy


def test_hooks_left_out_change_nothing(model, term):
    start = given(model, [CAT] * 2)
    plain = ascend(model, start, [term], settings=CHAIN, seeds=row_seeds(2, 0))
    empty = ascend(model, start, [term], settings=CHAIN, seeds=row_seeds(2, 0), hooks=Hooks())
    assert torch.equal(plain.trace, empty.trace)


def test_the_papers_settings():
    assert UVCE.chain.steps == 20 and [UVCE.count(s) for s in (0.3, 0.4, 0.5)] == [6, 8, 10]
    assert (UVCE.latent_weight, UVCE.pixel_weight) == (25, 250)
    assert len(ERROR.schedules) == 1 and ERROR.count(ERROR.inject[0]) == 0
    assert NEURON.chain.cuts == 0 and NEURON.inject == (0.3,)
