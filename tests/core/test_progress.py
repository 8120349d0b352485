"""Progress: the heartbeat speaks after silence, and only then. The clock is the test's own."""

import io
from collections.abc import Iterator

import pytest

from counterlens import progress
from counterlens.progress import Activity, Heartbeat, doing, idle, line, steps, within


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    idle()
    yield clock
    idle()


def test_a_line_says_what_how_far_how_long_and_how_much_longer(clock: Clock) -> None:
    now = Activity("predicting photos", 100.0, done=25, total=100)
    clock.now = 110.0
    assert line(now, clock) == "predicting photos, 25 of 100 (25%), 10 s, about 30 s left"


def test_a_forecast_of_the_work_is_preferred_to_the_clock(clock: Clock) -> None:
    now = Activity("attack", 100.0, done=25, total=100, left=600.0)
    clock.now = 110.0
    assert line(now, clock).endswith("about 10 min left")


def test_without_a_total_nothing_is_forecast(clock: Clock) -> None:
    clock.now = 104.0
    assert line(Activity("loading timm:resnet50", 100.0), clock) == "loading timm:resnet50, 4 s"


def test_the_heartbeat_is_silent_while_others_print_and_speaks_after_silence(clock: Clock) -> None:
    stream = io.StringIO()
    beat = Heartbeat(stream, clock)
    doing("loading x")
    clock.now += 1.0
    beat.beat()
    assert stream.getvalue() == ""
    beat.write("a line\n")
    clock.now += 1.4
    beat.beat()
    assert stream.getvalue() == "a line\n"
    clock.now += 0.2
    beat.beat()
    assert stream.getvalue() == "a line\nloading x, 3 s\n"


def test_nothing_is_printed_while_the_program_waits_for_its_user(clock: Clock) -> None:
    stream = io.StringIO()
    beat = Heartbeat(stream, clock)
    doing("reading")
    idle()
    clock.now += 60
    beat.beat()
    assert stream.getvalue() == ""


def test_on_a_screen_one_line_is_written_over_and_cleared_before_other_output(clock: Clock) -> None:
    stream = Screen()
    beat = Heartbeat(stream, clock)
    doing("loading x")
    clock.now += 2
    beat.beat()
    beat.write("done\n")
    assert stream.getvalue() == f"{progress.CLEAR}loading x, 2 s{progress.CLEAR}done\n"


def test_lines_in_a_log_become_rare_in_a_long_run(clock: Clock) -> None:
    stream = io.StringIO()
    beat = Heartbeat(stream, clock)
    doing("training")
    for _ in range(3600):
        clock.now += 1
        beat.beat()
    assert 30 + 54 + 50 - 5 <= stream.getvalue().count("\n") <= 30 + 54 + 50 + 5


def test_steps_of_a_search_count_into_the_forecast(clock: Clock) -> None:
    doing("pictures", 1, 4)
    taken = steps(range(10), 10)
    for _ in range(6):
        next(taken)
    clock.now += 30
    now = progress._current[-1]
    assert now.fraction == pytest.approx((1 + 0.5) / 4)
    assert "step 5 of 10" in line(now, clock)


def test_an_inner_activity_ends_with_its_block(clock: Clock) -> None:
    doing("audit")
    with within("loading y"):
        assert progress._current[-1].text == "loading y"
    assert progress._current[-1].text == "audit"
