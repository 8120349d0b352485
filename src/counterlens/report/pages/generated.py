"""Pages of generated images: where two classifiers disagree, and how real photographs compare."""

from collections.abc import Mapping, Sequence
from typing import Any

from counterlens.report.kit.blocks import Badge, Block, Gallery, Picture, Section, Strip
from counterlens.report.kit.parts import anchor, embed, number_matrix, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import Unit, show, show_interval

TABLES = ("disagreements", "drawable", "real", "persistence", "gradients")
SHOWN = 8
_MEANS = ("succeeded", "p_up", "p_down", "start_p_up", "start_p_down")
_HIDDEN = ("image", "start", "nearest", "name", "up", "down")


def sections(run: Run) -> list[Section]:
    """What the generator can draw, on what the models disagree, and how often it happens."""
    rows = run.table("disagreements")
    if not rows:
        return _gradients(run)
    return [_disagreements(run, rows), *_real(run), *_persistent(run), *_drawable(run)]


def _disagreements(run: Run, rows: Sequence[Mapping[str, Any]]) -> Section:
    blocks: list[Block] = []
    for word in dict.fromkeys(str(row["class"]) for row in rows):
        for way in dict.fromkeys(str(row["way"]) for row in rows):
            part = [row for row in rows if row["class"] == word and row["way"] == way]
            up, down = part[0]["up"], part[0]["down"]
            pictures = [p for row in part[:SHOWN] for p in _pair(run, row)]
            title = f"{word}: {up} raised, {down} lowered"
            place = f"{way}-{anchor(word)}"
            counted = f"{len(part)} images, none left out"
            blocks.append(Strip(title, counted, pictures, place))
    means = {k: n for k, n in run.numbers.items() if k.rsplit(".", 1)[-1] in _MEANS}
    blocks += (
        number_matrix(means, "disagree", caption="Means over all images", subject="Raised") or ()
    )
    blocks += plain_table("after JPEG, noise and a shift; which model others side with",
                          _left(run))  # fmt: skip
    text = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
    blocks += plain_table("all images", text, drawn=False)
    lead = (
        "Each image starts from the prompt alone and is then changed until one classifier is sure "
        "of the class and the other is not. Below an image: both confidences, the raised one first."
    )
    return Section("disagreements", "Where they disagree", blocks, lead)


def _left(run: Run) -> list[dict[str, Any]]:
    """Differences after disturbances and the opinion of judges, a row per number."""
    rows = []
    for key, number in run.numbers.items():
        area, _, rest = key.partition(".")
        way, _, metric = rest.partition(".")
        if area == "disagree" and metric.startswith(("gap_", "sides_")):
            unit: Unit = "share" if metric.startswith("sides_") else "plain"
            what = metric.replace("gap_", "difference after ").replace("sides_", "sides with it: ")
            rows.append(
                {"raised": way, "what": what, "value": show(number.value, unit),
                 "interval": show_interval(number, unit), "n": number.n}
            )  # fmt: skip
    return rows


def _pair(run: Run, row: Mapping[str, Any]) -> list[Picture]:
    pictures = []
    for key, up, down, word in (
        ("start", "start_p_up", "start_p_down", "start"),
        ("image", "p_up", "p_down", "generated"),
    ):
        image = embed(run, row.get(key))
        if image is None:
            continue
        line = f"{show(row[up], 'share')} / {show(row[down], 'share')}"
        alt = f"{row['class']}, {word}: {_both(row, row[up], row[down])}"
        badge = Badge("apart", "good") if key == "image" and row["succeeded"] else None
        pictures.append(Picture(image[0], alt, line, word, pixelated=image[1], badge=badge))
    return pictures


def _both(row: Mapping[str, Any], up: float, down: float) -> str:
    return f"{row['up']} {show(up, 'share')}, {row['down']} {show(down, 'share')}."


def _real(run: Run) -> list[Section]:
    rows = run.table("real")
    if not rows:
        return []
    pictures: list[Picture] = []
    for row in run.table("disagreements"):
        for near in row.get("nearest", ())[:1]:
            real, generated = embed(run, near["image"]), embed(run, row["image"])
            if real is None or generated is None:
                continue
            for data, word in (
                (generated, f"generated, {row['class']}"),
                (real, f"real, {near['label']}"),
            ):
                p = near if data is real else row
                line = f"{show(p['p_up'], 'share')} / {show(p['p_down'], 'share')}"
                number = len(pictures) + 1
                alt = f"{word}: {_both(row, p['p_up'], p['p_down'])}"
                pictures.append(Picture(data[0], alt, word, line, pixelated=data[1], number=number))
    blocks: list[Block] = [
        *plain_table("errors on real images", rows),
        Gallery("Generated images and their nearest real ones", pictures[:48], "nearest"),
    ]
    lead = "How often real images of the class show the error: one right, the other wrong."
    return [Section("real", "On real photographs", blocks, lead)]


def _persistent(run: Run) -> list[Section]:
    """The same search against another second classifier."""
    rows = run.table("persistence")
    if not rows:
        return []
    blocks: list[Block] = []
    for word in dict.fromkeys(str(row["class"]) for row in rows):
        for other in dict.fromkeys(str(row["other"]) for row in rows):
            for way in dict.fromkeys(str(row["way"]) for row in rows):
                keys = {"class": word, "other": other, "way": way}
                part = [row for row in rows if all(row[k] == v for k, v in keys.items())]
                if not part:
                    continue
                pictures = [p for row in part[:SHOWN] for p in _pair(run, row)]
                title = f"{word}: {part[0]['up']} raised, {part[0]['down']} lowered"
                place = f"again-{way}-{anchor(word + other)}"
                blocks.append(Strip(title, f"{len(part)} images", pictures, place))
    blocks += number_matrix(run.numbers, "persist", caption="Means", subject="Raised") or ()
    hidden = (*_HIDDEN, "found")
    text = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    blocks += plain_table("all images, searched again", text, drawn=False)
    lead = (
        "The search repeated with another second classifier. Carried: the image of the first "
        "search separates the first classifier from the other one, too."
    )
    return [Section("persistence", "With another second classifier", blocks, lead)]


def _drawable(run: Run) -> list[Section]:
    rows = run.table("drawable")
    pictures: list[Picture] = []
    for row in rows:
        for i, name in enumerate(row["images"]):
            image = embed(run, name)
            if image is not None:
                alt = f"{row['word']}, prompt sample {i + 1}"
                number = len(pictures) + 1
                pictures.append(
                    Picture(image[0], alt, str(row["word"]), pixelated=image[1], number=number)
                )
    text = [{k: v for k, v in row.items() if k != "images"} for row in rows]
    blocks: list[Block] = [
        *plain_table("prompt samples", text),
        Gallery("Prompt samples", pictures, "draw"),
    ]
    lead = "Eight images of the prompt alone; agreement: in how many a classifier sees it."
    return [Section("drawable", "Can the generator draw it?", blocks, lead)]


def _gradients(run: Run) -> list[Section]:
    """Pictures, the objects in them, and where gradients lie."""
    rows = run.table("gradients")
    if not rows:
        return []
    blocks: list[Block] = []
    for number, name in enumerate(list(dict.fromkeys(row["id"] for row in rows))[:SHOWN], 1):
        part = [row for row in rows if row["id"] == name]
        shown = [("original", part[0], "picture"), ("mask", part[0], "the object")]
        shown += [("image", row, str(row["arm"])) for row in part]
        pictures = []
        for key, row, word in shown:
            image = embed(run, row[key])
            if image is not None:
                value = row["area"] if key == "mask" else row["inside"]
                line = show(value, "share") if key != "original" else str(row["class"])
                alt = f"{name}, {word}: {line}"
                pictures.append(Picture(image[0], alt, line, word, pixelated=image[1]))
        blocks.append(Strip(str(name), f"towards {part[0]['class']}", pictures, f"grad-{number}"))
    blocks += (
        number_matrix(run.numbers, "gradient", caption="Means over all pictures", subject="Variant")
        or ()
    )
    hidden = ("original", "mask", "image")
    text = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    blocks += plain_table("all pictures", text, drawn=False)
    lead = (
        "The gradient of the confidence by the pixels, white where it is strongest; below it the "
        "share of its mass on the object. Below the mask: the object's share of the area. "
        "Crops cover the middle more often than the edges: a part of a gain is that of place."
    )
    return [Section("gradients", "Where the gradient lies", blocks, lead)]
