"""Explain by activation maps: where the evidence for a class lies."""

import torch

from counterlens.explanations.cam import METHODS, class_cam, colours, overlay
from counterlens.explanations.figure import Panel
from counterlens.models.parts import cam_layer
from counterlens.runs import Number, key_part
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows.explain.job import ExplainJob


def explain_maps(job: ExplainJob, *, figures: str = "figure") -> dict[str, Number]:
    """Grad-CAM and HiResCAM of every picture and target.

    Args:
        figures: first part of the figures' names.
    """
    place = cam_layer(job.classifier)
    job.run.note(layer={"name": place.name, "layout": place.layout, "grid": list(place.grid)})
    classes = job.classifier.classes
    rows = []
    for i, wanted in enumerate(job.targets):
        x = job.pictures.x[i : i + 1]
        grid = []
        for target in wanted:
            line = [Panel(x[0], f"{classes[target]} {job.probs[i, target]:.2f}")]
            for method in METHODS:
                cam = class_cam(
                    job.classifier, x, torch.tensor([target]), method=method, layer=place
                )
                seen = cam.picture.cpu()
                name = f"{i:03d}-{target}-{key_part(method)}"
                rows.append(
                    {
                        **job.row(i),
                        "target": classes[target],
                        "before": round(job.probs[i, target].item(), 6),
                        "method": method,
                        "layer": place.name,
                        "image": save(job.run, f"{name}.png", overlay(x, seen)[0]),
                        "heat": save(job.run, f"{name}-heat.png", seen),
                        "coloured": save(job.run, f"{name}-colours.png", colours(seen[0])),
                        "empty": not bool(seen.sum() > 0),
                    }
                )
                empty = "\n(no evidence)" if seen.sum() == 0 else ""
                line.append(Panel(overlay(x, seen)[0], method + empty))
            grid.append(line)
        if i < 12:
            title = f"{job.pictures.ids[i]}: {job.row(i)['predicted']}"
            sides = [classes[target] for target in wanted]
            save_figure(job.run, f"{figures}-{i:03d}", grid, sides=sides, title=title)
    job.run.write_table("maps", rows)
    return {}
