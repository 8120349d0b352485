"""Captured updates: code is compiled before the capture, and left aside where it spoils one.

Oracle: a stand-in for the device's graph that says what a capture was given and, as the device
does, refuses whatever a compiler would do inside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from counterlens.fit import Plan, Trainable
from counterlens.fit.update import WARM_UP, Update

pytestmark = pytest.mark.usefixtures("one_thread")


class Graph:
    """Remembers that it was replayed."""

    replays = 0

    def replay(self) -> None:
        Graph.replays += 1


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a capture is going on, as a list of one; captures do the work on the CPU."""
    inside = [False]
    Graph.replays = 0

    @contextmanager
    def capture(graph: Graph, stream: object) -> Iterator[None]:
        inside[0] = True
        try:
            yield
        finally:
            inside[0] = False

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    yield inside
    torch.compiler.set_stance("default")


def update_of(loss: object, logged: list[str], *, compiled: bool) -> Update:
    net = nn.Linear(3, 1)
    trainable = Trainable(net, loss, torch.optim.SGD(net.parameters(), lr=0.0))
    made = Update(
        trainable, Plan(9, 3, compile=compiled, graph=True), None, lambda step: 0, logged.append
    )
    made.graphed = True  # as on a GPU
    return made


def strided(step: int) -> dict[str, Tensor]:
    """A batch that is a view with gaps, which a copy of it has not."""
    return {"x": torch.full((4, 5), float(step))[:, :3]}


def test_warm_up_and_capture_see_the_same_memory(capturing: list[bool]):
    seen = []

    def loss(net: nn.Module, batch: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        x = batch["x"]
        seen.append((capturing[0], x.data_ptr(), x.stride(), x[0, 0].item()))
        return {"one": net(x).mean()}

    logged: list[str] = []
    update = update_of(loss, logged, compiled=False)
    for step in range(WARM_UP + 3):
        update(strided(step), step)
    assert [row[0] for row in seen] == [False] * WARM_UP + [True]
    assert len({row[1:3] for row in seen}) == 1  # one address, one layout
    assert [row[3] for row in seen] == list(range(WARM_UP + 1))  # and the values of each update
    assert Graph.replays == 3 and not logged


def compiling(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    """torch.compile reads programs as ever, and this makes the code."""
    whole = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda f, **more: whole(f, backend=backend, **more))


@pytest.mark.filterwarnings("ignore")  # of the compiler about itself
def test_nothing_is_compiled_in_a_capture(capturing: list[bool], monkeypatch: pytest.MonkeyPatch):
    compiled_inside: list[bool] = []

    def backend(graph: torch.fx.GraphModule, given: list[Tensor]) -> object:
        compiled_inside.append(capturing[0])
        return graph.forward

    compiling(monkeypatch, backend)
    logged: list[str] = []
    update = update_of(
        lambda net, batch, step: {"one": net(batch["x"]).square().mean()}, logged, compiled=True
    )
    for step in range(WARM_UP + 2):
        update(strided(step), step)
    assert compiled_inside == [False] and Graph.replays == 2 and not logged


@pytest.mark.filterwarnings("ignore")
def test_a_capture_that_fails_is_tried_again_without_compiled_code(
    capturing: list[bool], monkeypatch: pytest.MonkeyPatch
):
    compiling(monkeypatch, "eager")

    def loss(net: nn.Module, batch: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        x = batch["x"]
        if capturing[0] and update.compiled:
            x = x[:2]  # what the compiler has not seen
        return {"one": net(x).mean()}

    logged: list[str] = []
    update = update_of(loss, logged, compiled=True)
    for step in range(2 * WARM_UP + 3):
        update(strided(step), step)
    assert len(logged) == 1 and logged[0].startswith(
        "no CUDA graph of compiled code, so without it:"
    )
    assert "recompil" in logged[0] and update.graphed and Graph.replays == 3


def test_without_any_graph_the_first_cause_is_logged(capturing: list[bool]):
    def loss(net: nn.Module, batch: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        if capturing[0]:
            try:
                raise RuntimeError("a copy from pageable memory\nat length")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        return {"one": net(batch["x"]).mean()}

    logged: list[str] = []
    update = update_of(loss, logged, compiled=False)
    for step in range(WARM_UP + 2):
        update(strided(step), step)
    assert logged == ["no CUDA graph, a little slower: a copy from pageable memory"]
    assert not update.graphed and Graph.replays == 0
