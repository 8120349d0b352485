"""Runs: the folders that workflows write and that reports, comparisons and the app read.

Nothing in here knows torch, so a report can be rendered or a gate checked without it.
"""

from counterlens.runs.files import (
    append_line,
    atomic,
    file_bytes,
    inside,
    parse_json,
    plain_file,
    read_json,
    read_lines,
    read_object,
    read_text,
    short_name,
    user_path,
    write_json,
    write_text,
)
from counterlens.runs.gates import Gate, GateResult, check_gates, parse_gate, refuse_impossible
from counterlens.runs.logits import LogitSet, store_logits, stored_logits
from counterlens.runs.number import Number, in_words, key_part
from counterlens.runs.run import Run, discard_unstarted, how_to_resume, latest, new_folder, reading

__all__ = [
    "Gate",
    "GateResult",
    "LogitSet",
    "Number",
    "Run",
    "append_line",
    "atomic",
    "check_gates",
    "discard_unstarted",
    "file_bytes",
    "how_to_resume",
    "in_words",
    "inside",
    "key_part",
    "latest",
    "new_folder",
    "parse_gate",
    "parse_json",
    "plain_file",
    "read_json",
    "read_lines",
    "read_object",
    "read_text",
    "reading",
    "refuse_impossible",
    "short_name",
    "store_logits",
    "stored_logits",
    "user_path",
    "write_json",
    "write_text",
]
