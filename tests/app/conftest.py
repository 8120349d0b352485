"""One app over a folder of runs, reached as a browser reaches it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra app is not installed")


from app.visitor import Visitor, visit


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Callable[..., Visitor]]:
    """`app(RUNS, …)`: a visitor who opened the address that the terminal showed."""
    with ExitStack() as stack:

        def start(runs: Path | None = None, **options: object) -> Visitor:
            visitor = visit(runs or tmp_path / "runs", **options)
            stack.enter_context(visitor.client)
            return visitor

        yield start
