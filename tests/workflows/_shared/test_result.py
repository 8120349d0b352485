"""The one result and the one way through a run; oracles are the files of the run folder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from counterlens.errors import InputError, MissingExtra
from counterlens.images import write_png
from counterlens.runs import Number, Run
from counterlens.workflows._shared.options import Output, Resumable, option, record
from counterlens.workflows._shared.result import Result, runs_of
from counterlens.workflows._shared.session import begin, logger, running
from report_runs import audit_run, explain_run


@record
class Given(Output, Resumable):
    """Options of a workflow that exists here alone."""

    size: int = option(3, help="Of something.")


def test_a_result_reads_numbers_tables_and_images_of_its_run(tmp_path: Path) -> None:
    run = audit_run(tmp_path / "run", robust=0.02)
    red = np.zeros((4, 5, 3), np.uint8)
    red[..., 0] = 200
    write_png(run.path("images", "mistakes-00.png"), red)
    row = {"group": "mistakes", "image": "images/mistakes-00.png", "id": "a"}
    run.write_table("gallery", [row])
    result = Result(run)
    stored = json.loads((run.folder / "result.json").read_text())["numbers"]
    assert {key: number.to_json() for key, number in result.numbers.items()} == stored
    assert result.table("gallery") == [row] and "gallery" in result.tables()
    for images in (result.images("mistakes"), result.images("gallery"), result.images("mist")):
        assert [image.getpixel((1, 1)) for image in images] == [(200, 0, 0)]
        assert images[0].size == (5, 4)
    with pytest.raises(InputError, match=r"no images .cats.\. It has: mistakes"):
        result.images("cats")
    with pytest.raises(KeyError, match=r"Did you mean accuracy\.top1"):
        result.numbers["accuracy.top"]
    assert (result.folder, result.report.name) == (run.folder, "report.html")


def test_a_table_becomes_a_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = Run.create(tmp_path / "run", "audit", {})
    run.write_table("t", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    result, columns = Result(run), {"a": [1, 2], "b": ["x", "y"]}
    assert result.frame("t").to_dict("list") == columns
    assert result.table("t").frame().to_dict("list") == columns


def test_a_frame_without_pandas_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", "audit", {})
    run.write_table("t", [{"a": 1}])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        Result(run).table("t").frame()
    assert Result(run).table("t") == [{"a": 1}]


def test_a_notebook_shows_numbers_gates_and_sentences_by_itself(tmp_path: Path) -> None:
    run = audit_run(tmp_path / "run", robust=0.02)
    page = Result(run)._repr_html_()
    top = run.numbers["accuracy.top1"]
    assert f"{100 * top.value:.1f}\u202f%" in page and f"n = {top.n:,}" in page
    assert "FAIL: robust.l2-0.5.accuracy&gt;=0.4" in page and "http" not in page
    explained = explain_run(tmp_path / "e")
    write_png(explained.path("images", "figure.png"), np.zeros((2, 2, 3), np.uint8))
    page = Result(explained)._repr_html_()
    assert 'src="data:image/png;base64,' in page and "%" in page


def test_show_opens_the_page_and_names_it_where_no_browser_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", "audit", {})
    with pytest.raises(InputError, match="has no report"):
        Result(run).show()
    (run.folder / "report.html").write_text("page")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url))
    Result(run).show()
    assert opened == [(run.folder / "report.html").resolve().as_uri()]
    assert capsys.readouterr().out.strip() == str(run.folder / "report.html")


def test_parts_are_what_a_comparison_is_made_of(tmp_path: Path) -> None:
    a, b, both = (Run.create(tmp_path / name, "audit", {}) for name in "abc")
    result = Result(both, (Result(a), Result(b)))
    assert runs_of([result, [b, "folder"], Result(a)]) == [a, b, b, "folder", a]


def test_running_writes_manifest_report_and_the_end(tmp_path: Path) -> None:
    given = Given(out=tmp_path / "run", quiet=True, size=4)
    with running("audit", given, name="m", inputs={"model": "m", "data": "d"}) as run:
        run.add_numbers({"accuracy.top1": Number(0.5, 2, 0.1, 0.9, "arg max")})
        assert not run.done
    assert run.manifest["settings"] == {"model": "m", "data": "d", "size": 4}
    assert run.done and (run.folder / "report.html").exists()


def test_a_block_that_fails_can_be_resumed_with_the_same_options_alone(tmp_path: Path) -> None:
    given = Given(out=tmp_path / "run", quiet=True)
    with pytest.raises(RuntimeError), running("audit", given, name="m") as run:
        raise RuntimeError
    assert not run.done
    resumed = Given(out=tmp_path / "run", resume=True, quiet=True)
    assert begin("audit", resumed, name="m").folder == run.folder
    with pytest.raises(Exception, match="other settings \\(size\\)"):
        begin("audit", Given(out=tmp_path / "run", resume=True, size=5), name="m")


def test_log_lines_go_to_standard_error_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    logger(Given())("one line.")
    logger(Given(quiet=True))("none")
    logger(True)("none")
    assert capsys.readouterr().err == "one line.\n"


def test_a_result_and_its_summary_load_no_torch(tmp_path: Path) -> None:
    run = audit_run(tmp_path / "run", robust=0.02)
    code = (
        "import sys; from pathlib import Path; from counterlens.runs import Run\n"
        "from counterlens.workflows._shared.result import Result\n"
        f"page = Result(Run.open(Path({str(run.folder)!r})))._repr_html_()\n"
        "assert 'table' in page; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
