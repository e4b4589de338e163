"""Functions that Python's library has generated, as `dataclasses` generates an `__init__`."""

from __future__ import annotations

from types import CodeType


def is_generated(code: CodeType) -> bool:
    """Whether `dataclasses` generated a function. It gives such code no file; neither has the code of `python -c`."""
    return code.co_filename == "<string>" and code.co_qualname.startswith("__create_fn__")
