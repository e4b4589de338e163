"""What is asked for beside paths: a file of recorded calls, an explanation."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import Config, ConfigError
from .lines import Checked
from .recorded import PLACE, digest_of, read_calls


@dataclass(frozen=True)
class Asked:
    """The calls that verdicts may be made of.

    Attributes:
        settings: of `Settings`, as workers are told.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)


def check_options(options: argparse.Namespace) -> None:
    """Fills in what `--explain` says of what is to be checked.

    Raises:
        ConfigError: in one line, for options that do not go together.
    """
    empty = [name for name in ("only", "baseline", "calls", "explain") if getattr(options, name) == ""]
    if empty or "" in (options.exclude or ()):
        raise ConfigError(f"weft check: --{(empty or ['exclude'])[0]} is empty")
    if options.explain:
        _check_explain(options)


def _check_explain(options: argparse.Namespace) -> None:
    place, _, name = options.explain.rpartition(":")
    if place:
        options.names = [*options.names, place]
    if not name or options.only is not None:
        raise ConfigError("weft check: --explain takes the name of a function, class or method, and no --only")
    first = name.partition(".")[0]
    options.only = rf"^{re.escape(first)}(\.|$)"
    options.explain = name


def explained(part: Checked, name: str) -> Checked:
    """A part with the failures of one function, class or method only, each with the program that shows it."""
    lines = [one for one in part.lines if one.name == name or one.name.startswith(f"{name}.")]
    lines += [one for one in part.lines if one.level in ("unusable", "crash") and one not in lines]
    told = [
        dataclasses.replace(one, message=f"{one.message}\n\n{_indented(one.program)}\n")
        if one.level == "error"
        else one
        for one in lines
    ]
    return dataclasses.replace(part, lines=tuple(told))


def _indented(program: str) -> str:
    return "\n".join(f"    {line}" for line in (program or "# no program of ten lines shows it").splitlines())


def calls_for(options: argparse.Namespace, config: Config) -> Asked:
    """The recorded calls that are in force: those of a file that is named, or of the project.

    Raises:
        ConfigError: in one line, if they cannot be used.
    """
    file = Path(options.calls) if options.calls else config.root / PLACE
    if not options.calls and not file.exists():
        return Asked()
    read_calls(file)
    return Asked({"calls": os.path.abspath(file), "digest": digest_of(file)})
