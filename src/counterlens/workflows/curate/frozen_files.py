"""The files of a frozen set: pictures by class folder or in tar files, each with its facts.

A folder opens in torchvision's `ImageFolder` and, through `images/metadata.jsonl`, in `datasets`
with licence, author and source as columns. Tar files open in `webdataset` and `datasets`: per
picture its bytes, `.cls` with the number of its class and `.json` with the same facts.
"""

import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from counterlens.data.metadata import suffix_of, without_metadata
from counterlens.errors import InputError
from counterlens.runs import Run, atomic, file_bytes, inside, short_name, write_text

FORMATS = ("folder", "webdataset")
METADATA = "images/metadata.jsonl"
_PER_TAR = 1000
_LEFT_OUT = ("image", "rank", "row")
_EXPORTED = (
    *("id", "label", "label_number", "licence", "author", "source", "copyright"),
    *("answer", "sha256", "source_sha256"),
)
"""Facts that go with each exported picture: of one type in every row, as `datasets` needs it."""


def write_images(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    form: str,
    classes: Sequence[str],
    keep_metadata: bool,
) -> list[dict[str, Any]]:
    """Write the pictures; returns the facts of each, with the place of its file.

    Args:
        rows: of the shortlist.
        form: folder or webdataset.
        classes: of the set; a label outside them has the number −1.
        keep_metadata: write files byte by byte as they were mined, EXIF and all.
    """
    number = {name: k for k, name in enumerate(classes)}
    pictures = (
        _picture(run, row, place, number.get(str(row["label"]), -1), keep_metadata)
        for place, row in enumerate(rows)
    )
    if form == "folder":
        listed = _write_folder(out, pictures)
        _write_metadata(out, listed)
        return listed
    return _write_tars(out, pictures)


_FrozenPicture = tuple[dict[str, Any], str, str, bytes]
"""Facts, number, ending and bytes of a picture."""


def _picture(
    run: Run, row: Mapping[str, Any], place: int, label: int, keep_metadata: bool
) -> _FrozenPicture:
    data = _mined(run, row)
    if not keep_metadata:
        data = without_metadata(data)
    entry = {key: value for key, value in row.items() if key not in _LEFT_OUT}
    entry |= {"label_number": label, "source_sha256": row["sha256"], "sha256": _digest(data)}
    return entry, f"{place:06d}", suffix_of(data) or Path(row["image"]).suffix, data


def _mined(run: Run, row: Mapping[str, Any]) -> bytes:
    data = file_bytes(inside(run.folder, row["image"]), what="picture")
    if _digest(data) != row["sha256"]:
        raise InputError(f"{row['image']} of {run.folder} is not what it was when mined.")
    return data


def _write_folder(out: Path, pictures: Iterable[_FrozenPicture]) -> list[dict[str, Any]]:
    listed = []
    for entry, stem, ending, data in pictures:
        file = f"images/{folder_name(entry['label'])}/{entry['sha256'][:16]}-{stem}{ending}"
        with atomic(out / file) as part:
            part.write_bytes(data)
        listed.append({**entry, "file": file})
    return listed


def _write_metadata(out: Path, listed: Sequence[Mapping[str, Any]]) -> None:
    """The facts of each picture as `datasets` reads them: its file name first."""
    folder = METADATA.rpartition("/")[0]
    lines = [
        json.dumps(
            {"file_name": row["file"].removeprefix(f"{folder}/"), **exported(row)},
            ensure_ascii=False,
        )
        for row in listed
    ]
    write_text(out / METADATA, "".join(line + "\n" for line in lines))


def _write_tars(out: Path, pictures: Iterable[_FrozenPicture]) -> list[dict[str, Any]]:
    """Tar files of one type of picture each, for `datasets` refuses one that mixes them."""
    listed = []
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        tars: dict[str, tarfile.TarFile] = {}
        for entry, stem, ending, data in pictures:
            kind = ending.removeprefix(".")
            shard = f"shards/{kind}-{counts[kind] // _PER_TAR:06d}.tar"
            if counts[kind] % _PER_TAR == 0:
                (out / shard).parent.mkdir(exist_ok=True)
                if kind in tars:
                    tars[kind].close()
                tars[kind] = stack.enter_context(tarfile.open(out / shard, "w"))
            counts[kind] += 1
            _put(tars[kind], f"{stem}{ending}", data)
            facts = json.dumps(exported(entry), ensure_ascii=False)
            _put(tars[kind], f"{stem}.json", facts.encode())
            _put(tars[kind], f"{stem}.cls", str(entry["label_number"]).encode())
            listed.append({**entry, "file": f"{shard}#{stem}{ending}"})
    return listed


def exported(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that go with a picture into an export."""
    return {key: row[key] for key in _EXPORTED if key in row}


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # no time, no owner: the same images give the same file
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def folder_name(label: str) -> str:
    """A class name as the name of a folder.

    >>> folder_name("a/b"), folder_name("..."), folder_name("Persian cat")
    ('a_b', '_...', 'Persian cat')
    """
    name = re.sub(r"[/\\\0:*?\"<>|\n\r\t]", "_", label).strip() or "_"
    return short_name(f"_{name}" if name.startswith(".") else name)
