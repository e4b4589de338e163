"""Plans that compile in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from weft.insight.plan import planning

from .cases import compiled_here


@pytest.fixture(scope="module")
def compiling_here() -> Iterator[None]:
    """Lets plans compile on the eight devices of this process: a child imports JAX, which is most of what a plan costs.

    `test_simulated.py` shows that a child compiles the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "compiled", compiled_here)
        yield
