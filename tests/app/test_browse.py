"""Pages over simulated audits: the list, a run, its images by any filter, two runs side by side.

Oracles: counts read off the logits with NumPy; the flips table of `compare`; sys.modules.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from counterlens.app.images import ImageFilter, page, rows
from counterlens.review import Store, Verdict, store_path
from counterlens.runs import Run
from counterlens.workflows.compare.run import compare
from report_runs import CLASSES, audit_run, explain_run, simulate, softmax


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    audit_run(root / "plain")
    audit_run(root / "ratio", model="zoo:cifar10-ratio-small", seed=1, skill=2.6)
    explain_run(root / "plain" / "explained")
    return root


@pytest.fixture
def here(app, runs):
    return app(runs)


def test_without_runs_the_page_says_how_to_make_one(app, tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        answer = app(folder).get("/")
        assert answer.status_code == 200 and "No runs yet" in answer.text
        assert "counterlens audit zoo:cifar10-plain-small" in answer.text
    assert not (tmp_path / "none").exists()


def test_the_list_shows_every_run_with_its_numbers(here):
    text = here.get("/").text
    assert text.count("Compare plain") == 2 and text.count("Compare ratio") == 1
    assert "n = 600" in text and "n = 0" not in text
    assert text.index('"Compare plain"') < text.index('"Compare plain/explained"')
    assert "ratio-small" not in here.get("/", words="plain-small").text
    assert "No run fits" in here.get("/", words="zzz").text
    only = here.get("/", command="explain").text
    assert "Compare plain/explained" in only and "Compare ratio" not in only


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", "{"),
        ("run.json", "[]"),
        ("run.json", '{"command": 3, "settings": {}}'),
        ("result.json", '{"numbers": {"a": {"value": "x"}}}'),
        ("tables/gallery.jsonl", '{"group": 3}\n'),
        ("tables/per_class.jsonl", "not json\n"),
        ("logits/cifar10.json", "{}"),
        ("logits/cifar10.npy", "no array"),
    ],
)
def test_a_damaged_run_says_so_and_harms_no_other(app, tmp_path, file, text):
    root = tmp_path / "runs"
    audit_run(root / "good")
    bad = audit_run(root / "bad")
    (bad.folder / file).write_text(text, encoding="utf-8")
    here = app(root)
    assert here.get("/").status_code == 200 and "Compare good" in here.get("/").text
    if file.endswith(("run.json", "result.json")):
        assert "damaged" in here.get("/").text
    for address in ("/run", "/images"):
        answer = here.get(address, run="bad")
        assert answer.status_code in (200, 400)
        assert "Traceback" not in answer.text
        assert here.get(address, run="good").status_code == 200
    assert here.get("/run", run="bad").status_code == 400


def test_a_run_shows_intervals_plots_and_its_parts(here):
    text = here.get("/run", run="plain").text
    assert "n = 600" in text and "<svg" in text and "0 of 2" not in text
    assert "1 of 2 gates failed" in text
    assert "Part of this run" in text and "plain/explained" in text
    assert 'href="/images?run=plain"' in text


def test_the_change_grows_with_the_budget(here):
    text = here.get("/run", run="plain/explained").text
    assert text.index("l2 0.5: 0.40") < text.index("l2 3: 0.97")
    assert text.count("<meter") == 3


def test_filters_count_what_the_logits_say(runs):
    logits, labels = simulate(0)["cifar10"]
    probs = softmax(logits / 1.7)
    answer, sure = probs.argmax(1), probs.max(1)
    found = rows(Run.open(runs / "plain"))
    cats, dogs = CLASSES[3], CLASSES[5]
    for wanted, mask in (
        (ImageFilter(set="cifar10"), labels >= 0),
        (ImageFilter(set="cifar10", answer="wrong"), answer != labels),
        (ImageFilter(set="cifar10", answer="right"), answer == labels),
        (ImageFilter(set="cifar10", label=cats), labels == 3),
        (ImageFilter(set="cifar10", label=cats, predicted=dogs), (labels == 3) & (answer == 5)),
        (ImageFilter(set="cifar10", low=0.5, high=0.8), (sure >= 0.5) & (sure <= 0.8)),
    ):
        some, count, _ = page(found, wanted, most=10_000)
        assert count == len(some) == int(mask.sum())
    assert {row.set for row in found} == {"cifar10", "svhn", "flowers", "smooth"}


def test_pages_of_images_show_each_once_and_surest_mistakes_first(runs):
    found = rows(Run.open(runs / "plain"))
    seen, after, more = [], -1, True
    while more:
        some, _, more = page(found, ImageFilter(set="cifar10"), after=after, most=97)
        seen += [row.id for row in some]
        after = some[-1].number
    assert len(seen) == len(set(seen)) == 600
    wrong = [row for row in found if row.wrong]
    sure = [row.confidence for row in wrong]
    assert list(found[: len(wrong)]) == wrong and sure == sorted(sure, reverse=True)


def test_groups_slices_and_tags_filter_where_a_run_has_them(app, tmp_path):
    """The tables as `audit --groups site --slices` writes them; tags are a reviewer's."""
    run = audit_run(tmp_path / "runs" / "tagged", finish=False)
    ids = [f"cifar10/{i:05d}" for i in range(6)]
    run.write_table(
        "group_values",
        [{"image": one, "site": f"s{i % 2}", "light": "day"} for i, one in enumerate(ids)],
    )
    run.write_table("slice_images", [{"image": i, "slice": "x: dark" * (i != ids[0])} for i in ids])
    run.finish()
    store = Store.create(store_path(run.folder), ids, about="tagged")
    store.add([Verdict(ids[2], "ann", "accept", "", ("fog",), mark="0" * 16)])
    here = app(tmp_path / "runs")
    assert "3 of 1,500 images" in here.get("/images", run="tagged", group="site = s0").text
    assert "5 of 1,500 images" in here.get("/images", run="tagged", slice="x: dark").text
    assert "1 of 1,500 images" in here.get("/images", run="tagged", tag="fog").text
    both = here.get("/images", run="tagged", tag="fog", group="light = day").text
    assert "1 of 1,500 images" in both and "selected>fog (1)</option>" in both
    assert "No image fits" in here.get("/images", run="tagged", tag="fog", group="site = s1").text


def test_from_any_mistake_the_form_is_one_click_away(here):
    text = here.get("/images", run="plain", answer="wrong").text
    assert text.count(">Explain<") > 20
    form = here.get("/ask", run="plain", set="cifar10", id="cifar10-test/3", target="cat").text
    assert 'value="zoo:cifar10-plain-small"' in form and 'value="cat"' in form
    assert "/picture?run=plain&amp;set=cifar10&amp;id=cifar10-test%2F3" in form


def test_an_image_leads_straight_to_the_runs_that_explain_it(app, tmp_path):
    """Explained are images of the same set with the same weights, and an audit's own mistakes."""
    root = tmp_path / "runs"
    audit = audit_run(root / "plain", finish=False)
    audit.note(weights_hash="f00d", data_fingerprint={"cifar10": "1"})
    audit.finish()
    own = rows(audit)[0].id
    for name, weights, images, more in (
        ("asked", "f00d", [f"sample:cifar10#{own}"], {}),
        ("chapter", "f00d", [], {"audit": "plain"}),
        ("other-weights", "beef", [f"sample:cifar10#{own}"], {}),
        ("other-set", "f00d", [f"sample:mnist#{own}"], {}),
    ):
        run = Run.create(root / name, "explain", {"images": images, "method": "cam"})
        run.note(weights_hash=weights, **more)
        run.write_table("maps", [{"id": own}])
        run.finish()
    text = app(root).get("/images", run="plain", answer="wrong").text
    shown = [name for name in ("asked", "chapter", "other") if f"/run?run={name}" in text]
    assert shown == ["asked", "chapter"] and text.count("Explained:") == 1


def test_pictures_come_small_and_whole(here, runs):
    path = Run.open(runs / "plain").table("gallery")[0]["image"]
    whole = here.get("/file", run="plain", path=path)
    assert whole.content == (runs / "plain" / path).read_bytes()
    first = here.get("/thumb", run="plain", path=path)
    assert first.content == here.get("/thumb", run="plain", path=path).content
    answer = here.get("/picture", run="plain", set="cifar10", id="cifar10-test/3")
    assert answer.headers["content-type"] == "image/png"
    assert here.get("/picture", run="plain", set="cifar10", id="none").status_code == 400


def test_two_runs_side_by_side_show_every_flip(here, runs, tmp_path):
    flips = compare(runs / "plain", runs / "ratio", out=tmp_path / "both", quiet=True).table(
        "flips"
    )
    answer = here.get("/compare", run=["plain", "ratio"])
    assert answer.status_code == 200
    both = {kind: sum(row["flip"] == kind for row in flips) for kind in ("negative", "positive")}
    assert min(both.values()) > 0
    assert f"all ({len(flips)})" in answer.text
    assert answer.text.count("→") >= 24 and f"24 of {len(flips)}<" in answer.text
    every = here.get("/compare", run=["plain", "ratio"], most=len(flips)).text
    assert every.count("right → wrong") == both["negative"] and "Show more" not in every
    only = here.get("/compare", run=["plain", "ratio"], kind="positive", most=len(flips)).text
    assert only.count("wrong → right") == both["positive"] and "right → wrong" not in only
    assert not list(runs.glob("*compared*"))


@pytest.mark.parametrize("names", [[], ["plain"], ["plain", "plain"], ["plain", "ratio", "plain"]])
def test_only_two_different_runs_are_compared(here, names):
    assert here.get("/compare", run=names).status_code == 400


def test_runs_that_share_nothing_are_compared_without_flips(here):
    answer = here.get("/compare", run=["plain", "plain/explained"])
    assert answer.status_code == 200 and "No flips" in answer.text


def test_one_run_is_shown_alone(app, runs):
    here = app(runs / "plain")
    assert here.folders.names() == ["plain", "plain/explained"]
    assert here.get("/run", run="ratio").status_code == 404
    assert here.get("/file", run="ratio", path="images/x.png").status_code == 404


def test_pages_that_do_not_exist_say_so(here):
    assert here.get("/nothing").status_code == 404
    assert here.get("/static/secret.py").status_code == 404
    assert here.get("/static/..%2Fserver.py").status_code == 404
    assert here.get("/images").status_code == 400  # no run was named
    assert "incomplete: after, run" in here.get("/images", after="x").text


def test_the_server_loads_neither_torch_nor_pillow(runs):
    """Oracle: sys.modules of a fresh interpreter after every kind of page."""
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from app.visitor import visit
here = visit(Path({str(runs)!r}))
with here.client:
    pages = [here.get("/"), here.get("/run", run="plain"), here.get("/images", run="plain"),
             here.get("/compare", run=["plain", "ratio"]), here.get("/ask"),
             here.get("/thumb", run="plain", path="images/cifar10-0.png"),
             here.get("/run", run="plain/explained")]
    print(json.dumps([[page.status_code for page in pages],
          [m for m in ("torch", "PIL", "matplotlib", "sklearn", "timm") if m in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    statuses, loaded = json.loads(done.stdout)
    assert set(statuses) <= {200, 404} and loaded == []
