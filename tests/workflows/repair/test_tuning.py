"""Remedies that train the whole network further, on small pictures with a shortcut."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float64

import counterlens
from counterlens.data.sets import array_set
from counterlens.errors import InputError
from counterlens.images import ImageSet, write_png
from counterlens.losses.pairs import pair_terms
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.measured import auroc_gap, halves, worst_trust
from counterlens.workflows.repair.run import repair
from counterlens.workflows.repair.tuning import train
from counterlens.workflows.repair.tuning.recipes import NAMES, plain, tuning

MODEL = """
import torch
from torch import nn
from counterlens import Classifier

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 2)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(3)[..., None, None])
            self.first.bias.zero_()
            self.fc.weight.copy_(torch.tensor([[-1.0, 0, -4.0], [1.0, 0, 4.0]]))
            self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(self.norm(self.first(x - 0.5)).mean((2, 3)))

def shortcut():
    return Classifier(Small().eval(), ["cat", "dog"], size=16)
"""


def pictures(n: int, seed: int, agree: float = 0.8) -> ImageSet:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    z = np.where(rng.random(n) < agree, y, 1 - y)
    x = rng.integers(60, 190, (n, 16, 16, 3))
    x[..., 0] += (40 * (2 * y - 1) + rng.normal(0, 20, n)).astype(int)[:, None, None]
    x[..., 2] += (40 * (2 * z - 1))[:, None, None]
    made = array_set(f"set{seed}", x.clip(0, 255).astype(np.uint8), y, ("cat", "dog"))
    return replace(made, extra={"place": np.array(["snow", "sand"])[z]})


def grey(n: int, seed: int) -> ImageSet:
    x = np.random.default_rng(seed).integers(0, 256, (n, 16, 16, 1)).repeat(3, 3)
    return array_set(f"grey{seed}", x.astype(np.uint8), np.zeros(n, dtype=np.int64), ("grey",))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COUNTERLENS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "nets.py").write_text(MODEL)
    return f"{tmp_path / 'nets.py'}:shortcut"


def test_group_dro_and_jtt_are_tried_beside_their_placebos(model: str, tmp_path: Path) -> None:
    check = pictures(300, 2)
    result = repair(
        model, fix=pictures(400, 1), check=check, groups_from="column:place",
        remedies="recipe:group-dro,recipe:jtt", changes=("lr=0.2", "batch=16", "augment=none"),
        device="cpu", quiet=True, out=tmp_path / "run",
    )  # fmt: skip
    rows = {row["name"]: row for row in result.table("tried")}
    assert {"recipe:group-dro, shuffled groups", "recipe:jtt, random images"} <= set(rows)
    assert rows["recipe:group-dro"]["worst_group"] > rows["as it is"]["worst_group"] + 0.2
    (verdict,) = result.table("verdict")
    assert verdict["remedy"].startswith("recipe:")
    new = counterlens.load(f"repaired:{result.folder}", device="cpu")
    planes = np.stack([check.read(i) for i in range(len(check))]).transpose(0, 3, 1, 2)
    with torch.no_grad():
        answers = new(torch.from_numpy(planes.copy()).float() / 255).argmax(1).numpy()
    (whole,) = (row for row in result.table("receipt") if row["kind"] == "all")
    assert (answers == check.labels).mean() == pytest.approx(whole["after"])
    old = counterlens.load(model, device="cpu", trust_remote_code=True)
    assert torch.equal(old.net.first.weight[..., 0, 0], torch.eye(3))  # the model is untouched


def test_pairs_train_the_whole_network_beside_unrelated_edits(model: str, tmp_path: Path) -> None:
    """Blue, the shortcut, goes with the class always; its versions have the other blue."""
    fix = pictures(96, 1, agree=1.0)
    for i in range(len(fix)):
        other = fix.read(i).astype(int)
        other[..., 2] += 80 * (1 - 2 * int(fix.labels[i]))
        file = tmp_path / "edited" / f"{fix.ids[i]}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_png(file, other.clip(0, 255).astype(np.uint8))
    result = repair(
        model, fix=fix, check=pictures(120, 2, agree=0.5), groups_from="column:place",
        pairs=f"files:{tmp_path / 'edited'}", remedies="recipe:pairs", device="cpu", quiet=True,
        changes=("lr=0.02", "batch=16", "augment=none", "epochs=6"), out=tmp_path / "run",
    )  # fmt: skip
    worst = {row["name"]: row["worst_group"] for row in result.table("tried")}
    assert worst["recipe:pairs"] > worst["recipe:pairs, unrelated edits"] + 0.2, worst


def test_the_terms_of_pairs_by_hand() -> None:
    """Two images; the first has two versions in turn: one of its class, one of the other."""
    net = torch.nn.Linear(2, 2, bias=False).double()
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double()
    version = torch.tensor([[1.5, 2.0], [0.0, 1.0]]).double()
    y, of = torch.tensor([0, 1]), torch.tensor([0, 0])
    batch = {"x": x, "y": y, "version": version, "of": of, "version_y": torch.tensor([0, 1])}
    with torch.no_grad():
        terms = pair_terms(net, batch, 0)
        own, other = x @ net.weight.T, version @ net.weight.T
    log = [row - row.exp().sum().log() for row in (*own, *other)]
    assert terms["in"].item() == pytest.approx(-(log[0][0] + log[1][1]).item() / 2)
    assert terms["edited"].item() == pytest.approx(-(log[2][0] + log[3][1]).item() / 2)
    gap = log[0].exp() - log[2].exp()
    assert terms["agree"].item() == pytest.approx((gap**2).sum().item())
    alone = {**batch, "of": of[:0], "version": version[:0], "version_y": of[:0]}
    with torch.no_grad():
        assert set(pair_terms(net, alone, 0)) == {"in"}


def test_keys_of_unknown_images_and_attacks_are_in_the_receipt(model: str, tmp_path: Path) -> None:
    result = repair(
        model, fix=pictures(400, 1), check=pictures(200, 2), groups_from="none",
        remedies="recipe:outlier-exposure", out_data=grey(40, 3), ood={"grey": grey(60, 4)},
        attack="linf:2/255", attack_points=10, want="ood.grey.auroc", allow="accuracy.top1:-0.5",
        changes=("lr=0.1", "epochs=2", "batch=16"), device="cpu", quiet=True, out=tmp_path / "run",
    )  # fmt: skip
    rows = {row["key"]: row for row in result.table("keys")}
    assert {"ood.grey.auroc", "robust.linf-2_255.accuracy"} <= set(rows)
    own = rows["ood.grey.auroc"]
    assert own["after"] - own["before"] == pytest.approx(own["change"])
    assert rows["robust.linf-2_255.accuracy"]["trust"]["verdict"] in ("weak", "do not quote")
    change = result.numbers["repair.change.ood.grey.auroc"]
    assert change.low <= own["change"] <= change.high
    assert result.table("placebos")[0]["key"] == "ood.grey.auroc"
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "ood.grey.auroc" in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"remedies": "recipe:pairs"}, "no edit is given"),
        ({"remedies": "recipe:ratio"}, "out-distribution images"),
        ({"remedies": "recipe:adversarial"}, "near.radius"),
        ({"remedies": "dfr", "attack": "l2:much"}, "not NORM:RADIUS"),
        ({"remedies": "recipe:nonsense"}, "Of repair: plain"),
        ({"remedies": "recipe:plain", "changes": ("epocs=3",)}, "epochs"),
        ({"remedies": "recipe:plain", "want": "ood.grey.auroc"}, "want is"),
        ({"remedies": "dfr", "allow": "robust.l2-0.5.accuracy:-0.1"}, "allow is"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    model: str, tmp_path: Path, options: dict[str, object], text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        repair(
            model, fix=pictures(200, 1), check=pictures(60, 2), groups_from="column:place",
            device="cpu", quiet=True, out=tmp_path / "run", **options,
        )  # fmt: skip
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_unknown_images_of_the_training_do_not_prove(model: str, tmp_path: Path) -> None:
    outside = grey(40, 3)
    with pytest.raises(InputError, match="40 of the ood images are among the out-data images"):
        repair(
            model, fix=pictures(200, 1), check=pictures(60, 2), groups_from="column:place",
            remedies="recipe:outlier-exposure", out_data=outside, ood={"grey": outside},
            device="cpu", quiet=True, out=tmp_path / "run",
        )  # fmt: skip


def test_every_name_is_a_whole_recipe_and_has_a_plain_placebo() -> None:
    for name in NAMES:
        one = tuning(f"recipe:{name}", (), ("l2:0.5",), "out/")
        assert one.recipe.epochs > 0 and plain(one).recipe.loss == "plain"
    ratio = tuning("recipe:ratio", (), ("l2:0.5",), "out/").recipe
    assert (ratio.near.radius, ratio.far.radius) == (0.5, 1.0)
    shipped = tuning("recipe:cifar10-ratio-0.25", ("epochs=1",), (), "out/").recipe
    assert (shipped.loss, shipped.epochs, shipped.near.radius) == ("ratio", 1, 0.25)


def test_the_paired_auroc_interval_is_that_of_delong() -> None:
    """Oracle: the covariance matrix of DeLong et al. written out, S = S10/m + S01/n."""
    rng = np.random.default_rng(3)
    m, n = 40, 30
    base_in, base_out = rng.normal(1, 1, m), rng.normal(0, 1, n)
    first = (base_in + rng.normal(0, 0.5, m), base_out + rng.normal(0, 0.5, n))
    second = (base_in + rng.normal(0.3, 0.5, m), base_out + rng.normal(0, 0.5, n))

    def kernel(scores: tuple[np.ndarray, np.ndarray]) -> Float64[np.ndarray, "m n"]:
        inside, outside = scores
        return (inside[:, None] > outside) + (inside[:, None] == outside) / 2

    both = [kernel(first), kernel(second)]
    s10 = np.cov(np.stack([k.mean(1) for k in both]))
    s01 = np.cov(np.stack([k.mean(0) for k in both]))
    s = s10 / m + s01 / n
    half = 1.959963984540054 * np.sqrt(s[0, 0] + s[1, 1] - 2 * s[0, 1])
    gap = auroc_gap(first, second)
    value = both[1].mean() - both[0].mean()
    assert (gap.value, gap.low, gap.high) == pytest.approx((value, value - half, value + half))


def test_halves_of_an_unknown_set_share_no_picture() -> None:
    whole = grey(50, 5)
    first, second = halves(whole)
    assert sorted([*first.ids, *second.ids]) == sorted(whole.ids)
    assert min(len(first), len(second)) > 10


def test_the_less_trusted_of_two_attacks_speaks_for_their_difference() -> None:
    weak, good = {"verdict": "weak"}, {"verdict": "trusted"}
    assert worst_trust([good, weak]) == weak and worst_trust([good, good]) == good


def test_mistakes_weigh_more_and_the_placebo_moves_them_within_classes() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    wrong = rng.random(60) < 0.5
    share = train.upweighted(wrong)
    assert share.mean() == pytest.approx(1) and share[wrong].min() / share[~wrong].max() == 5
    by = Grouped(labels, labels * 0, ("a", "b"), ("all",))
    moved = train.shuffled_within(by, wrong, rng)
    assert (moved != wrong).any()
    assert all(moved[labels == k].sum() == wrong[labels == k].sum() for k in (0, 1))
    with pytest.raises(InputError, match="recipe:jtt needs 20"):
        train.upweighted(np.arange(60) < 3)
