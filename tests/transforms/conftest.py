"""Shared by the transforms' tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


class Traces:
    """Wraps functions so that each Python execution of one (each trace) is counted."""

    def __init__(self):
        self.count = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return function(*args, **kwargs)

        return counted


@pytest.fixture
def traces() -> Traces:
    return Traces()
