"""Runs and frozen sets as other programs read them; nothing here imports those programs."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import yaml

from counterlens.report.pages.card import model_card as table
from counterlens.runs import Run, atomic, key_part, write_json, write_text
from counterlens.runs.keys import meaning, model_words, verdict

TASK = "image-classification"
_MIME = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}


@dataclass(frozen=True)
class ExportedPicture:
    """One exported picture: its bytes, its class where known, and the model's answer."""

    id: str
    data: bytes
    ending: str
    label: str | None
    answer: str | None
    confidence: float | None


def digest(data: bytes) -> str:
    """SHA-256 of some bytes."""
    return sha256(data).hexdigest()


def model_card(run: Run) -> str:
    """README.md for the hub: its YAML header has a model-index, each metric with its interval.

    Numbers that must not be quoted or that are only bounds are left out of the header.
    """
    facts = run.manifest
    settings = facts["settings"]
    name = model_words(str(facts.get("model") or settings.get("model") or run.folder.name))
    data = str(facts.get("data") or settings.get("data") or "?")
    metrics = [
        {
            "type": key,
            "name": meaning(key).label,
            "value": number.value,
            "args": {"low": number.low, "high": number.high, "n": number.n, "level": 0.95,
                     "protocol": number.protocol},
        }
        for key, number in run.numbers.items()
        if number.value is not None and verdict(number) != "do not quote" and not number.bound
    ]  # fmt: skip
    result = {
        "task": {"type": TASK, "name": "Image classification"},
        "dataset": {"type": key_part(data), "name": data},
        "metrics": metrics,
    }
    header = {
        "pipeline_tag": TASK,
        "tags": ["counterlens"],
        "model-index": [{"name": name, "results": [result]}],
    }
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{text}---\n\n# {name}\n\n{table(run)}"


CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataBiases": "cr:dataBiases",
    "dataCollection": "cr:dataCollection",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "personalSensitiveInformation": "cr:personalSensitiveInformation",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification of Croissant 1.0 gives."""


def croissant(card: Mapping[str, Any], jsonl_digest: str) -> dict[str, Any]:
    """Croissant 1.0 metadata of a frozen set, from its card."""
    licences = list(card.get("licences") or ())
    fields = ("id", "label", "label_number", "licence", "sha256", "file")
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": key_part(str(card["name"])),
        "description": f"{card['images']} images, kind {card['kind']}; review: "
        f"{card['review']['summary']}.",
        "license": licences or ["unknown"],
        "url": f"urn:sha256:{card['sha256']}",
        "version": "1.0.0",
        "datePublished": str(card.get("frozen") or card.get("finished") or "1970-01-01")[:10],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": "images.jsonl",
                "name": "images.jsonl",
                "contentUrl": "images.jsonl",
                "encodingFormat": "application/jsonlines",
                "sha256": jsonl_digest,
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "images",
                "name": "images",
                "key": {"@id": "images/id"},
                "field": [_field(name) for name in fields],
            }
        ],
    }


def _field(name: str) -> dict[str, Any]:
    kind = "sc:Integer" if name == "label_number" else "sc:Text"
    source = {"fileObject": {"@id": "images.jsonl"}, "extract": {"column": name}}
    return {
        "@type": "cr:Field", "@id": f"images/{name}", "name": name, "dataType": kind,
        "source": source,
    }  # fmt: skip


def fiftyone(pictures: Sequence[ExportedPicture], classes: Sequence[str], folder: Path) -> Path:
    """A folder in FiftyOne's own form of classification data: data/ and labels.json."""
    labels: dict[str, Any] = {}
    for number, one in enumerate(pictures):
        stem = f"{number:06d}"
        with atomic(folder / "data" / f"{stem}{one.ending}") as part:
            part.write_bytes(one.data)
        # not "id" and "confidence": those are FiftyOne's own, of the label
        attributes = {
            "image": one.id, "answer": one.answer, "answer_confidence": one.confidence
        }  # fmt: skip
        known = {key: value for key, value in attributes.items() if value is not None}
        labels[stem] = {"label": one.label, "attributes": known} if one.label else None
    write_json(folder / "labels.json", {"classes": list(classes), "labels": labels})
    return folder


def label_studio(pictures: Sequence[ExportedPicture], classes: Sequence[str], folder: Path) -> Path:
    """tasks.json and config.xml: each picture a task, the model's answer its prediction."""
    tasks = []
    for one in pictures:
        kind = _MIME.get(one.ending.lower(), "png")
        address = f"data:image/{kind};base64,{base64.b64encode(one.data).decode()}"
        task: dict[str, Any] = {"data": {"image": address, "id": one.id, "label": one.label}}
        if one.answer:
            chosen = {
                "from_name": "class", "to_name": "image", "type": "choices",
                "value": {"choices": [one.answer]},
            }  # fmt: skip
            score = {} if one.confidence is None else {"score": one.confidence}
            task["predictions"] = [{"model_version": "audited", "result": [chosen], **score}]
        tasks.append(task)
    write_text(folder / "tasks.json", json.dumps(tasks, indent=1, ensure_ascii=False) + "\n")
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in classes)
    config = (
        '<View><Image name="image" value="$image"/>'
        f'<Choices name="class" toName="image" choice="single">{choices}</Choices></View>\n'
    )
    write_text(folder / "config.xml", config)
    return folder
