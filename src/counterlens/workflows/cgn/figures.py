"""Figures of the CGN study: heat maps beside masks, features in the plane, masks and accuracy.

Paper: cgnstudy2022, figures 3, 4, 7 and 10.
Differs: the study's two t-SNE panels show the same test pictures (its "counterfactual" loader
       falls back to them); here the second one shows counterfactuals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterlens.explanations.cam import class_cam, overlay
from counterlens.explanations.figure import Panel, canvas
from counterlens.models.nets.digit_net import DigitNet
from counterlens.runs import Run, atomic
from counterlens.workflows._shared.figures import save_figure
from counterlens.workflows.cgn.measure import LAYER, Test, as_classifier

SHOWN = 8


def map_figure(run: Run, nets: Mapping[str, DigitNet], test: Test) -> dict[str, Any]:
    """A row per classifier: where it looks on the same test pictures (figure 4)."""
    x = test.x[:SHOWN].float() / 255
    masks = test.split.masks[:SHOWN].float()[:, None].expand(-1, 3, -1, -1)
    rows = [
        [Panel(one.cpu(), str(int(label))) for one, label in zip(x, test.y, strict=False)],
        [Panel(mask) for mask in masks],
    ]
    for name, net in nets.items():
        classifier = as_classifier(net, name).to(x.device).eval()
        predicted = classifier(x).argmax(1)
        shown = overlay(x, class_cam(classifier, x, predicted, layer=LAYER).picture).cpu()
        rows.append([Panel(one, str(int(s))) for one, s in zip(shown, predicted, strict=True)])
    path = save_figure(
        run, "figure-heat", rows, sides=["picture", "digit", *nets], title="Where each one looks"
    )
    return _row(path, "Grad-CAM of the predicted class; below each its answer")


def plane(features: Float[Tensor, "n d"], *, seed: int = 0) -> Float[Tensor, "n 2"]:
    """Features in the plane by t-SNE, scikit-learn's defaults."""
    from sklearn.manifold import TSNE

    settings = TSNE(random_state=seed, perplexity=min(30.0, (len(features) - 1) / 3))
    return torch.from_numpy(settings.fit_transform(features.numpy()))


def plane_figure(
    run: Run, panels: Mapping[str, tuple[Float[Tensor, "n d"], Int[Tensor, "n"]]], *, seed: int
) -> dict[str, Any]:
    """One panel of t-SNE per name, coloured by digit (figure 3)."""
    high = -(-len(panels) // 2)
    figure = canvas(8, 4 * high)
    for i, (name, (features, labels)) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(high, 2, i)
        points = plane(features, seed=seed)
        for digit in range(10):
            here = labels == digit
            axes.scatter(
                points[here, 0].numpy(),
                points[here, 1].numpy(),
                s=4,
                color=f"C{digit}",
                label=str(digit),
            )
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    axes.legend(fontsize=6, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    return _row(_save(run, "figure-plane", figure), "Features by t-SNE, coloured by digit")


def mask_figure(run: Run, points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Intact masks of each CGN against the accuracy of its classifier (beside figure 7)."""
    figure = canvas(4.4, 3.4)
    axes = figure.add_subplot()
    axes.scatter([p[0] for p in points], [100 * p[1] for p in points], s=22, alpha=0.7)
    axes.set_xlabel("digits with intact masks")
    axes.set_ylabel("test accuracy in %")
    axes.set_xlim(-0.5, 10.5)
    return _row(_save(run, "figure-masks", figure), "Intact masks and accuracy, one dot a CGN")


def ablation_figure(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy by size, a line per ratio (figure 10)."""
    figure = canvas(4.6, 3.4)
    axes = figure.add_subplot()
    for ratio in sorted({row["ratio"] for row in rows}):
        sizes = sorted({row["size"] for row in rows if row["ratio"] == ratio})
        chosen = [
            [row["test"] for row in rows if row["ratio"] == ratio and row["size"] == size]
            for size in sizes
        ]
        middle = [100 * float(torch.tensor(one).median()) for one in chosen]
        axes.plot(sizes, middle, marker="o", label=f"ratio {ratio}")
    axes.set_xscale("log")
    axes.set_xlabel("counterfactual pictures")
    axes.set_ylabel("test accuracy in %, median")
    axes.legend(fontsize=8)
    return _row(_save(run, "figure-sizes", figure), "Accuracy by number of counterfactuals")


def _save(run: Run, name: str, figure: Any) -> str:
    with atomic(run.path("images", f"{name}.png")) as part, part.open("wb") as opened:
        figure.savefig(opened, format="png", metadata={"Software": None}, facecolor="white")
    return f"images/{name}.png"


def _row(path: str, title: str) -> dict[str, Any]:
    return {"group": "figures", "image": path, "id": path, "label": title}
