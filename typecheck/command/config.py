"""`[tool.weft.check]` in the nearest `pyproject.toml`, and the configuration that results with the command line.

    [tool.weft.check]
    paths = ["src"]
    exclude = ["src/vendored", "**/*_pb2.py"]
    strict = true
    jobs = 4
    seconds = 20
    baseline = "weft-baseline.json"
    dims = { "pkg.layers:attend" = { heads = 8 } }

    [tool.weft.check.args."pkg.layers:Block"]
    activation = { import = "jax.nn:relu" }
    rate = 0.5

Paths are relative to the file. `dims` fixes sizes and `args` gives arguments, each by function or class.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """The command cannot be run as asked; the message is one line, and the exit code is 2."""


@dataclass(frozen=True)
class Settings:
    """The options that verdicts depend on; workers receive them, and stored verdicts are found by them.

    Attributes:
        only: a regular expression for the names of functions and classes to check; None for all.
        strict: whether warnings and undecided contracts are failures.
        trials, seconds: the budget of each contract.
        dims, args: sizes and arguments by `module:name`.
    """

    only: str | None = None
    strict: bool = False
    trials: int = 1000
    seconds: float = 60.0
    dims: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Config(Settings):
    """The configuration of a run; the defaults are the command's.

    Attributes:
        paths, exclude: the paths to check, and patterns of paths to leave out.
        jobs: the number of processes; 0 means one for each core.
        memory: the limit of a worker, in megabytes.
        baseline: the file of accepted failures.
        root: the folder of the file, to which paths are relative.
    """

    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int = 0
    memory: float = 4096.0
    baseline: str | None = None
    root: Path = field(default_factory=Path.cwd)

    @property
    def settings(self) -> Settings:
        """The options among these that verdicts depend on."""
        return Settings(**{option.name: getattr(self, option.name) for option in dataclasses.fields(Settings)})


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)  # TOML's `true` is no number of seconds


def _by_target(is_entry: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def is_table(value: Any) -> bool:
        return isinstance(value, dict) and all(
            # A name without a colon would match no function, and its sizes would be ignored in silence.
            ":" in target and isinstance(table, dict) and all(map(is_entry, table.values()))
            for target, table in value.items()
        )

    return is_table


_TARGETS = 'a table of tables by "module:name"'
# For each key a test of its value, and the allowed values in words.
_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "paths": (_are_strings, "a list of strings"),
    "exclude": (_are_strings, "a list of patterns"),
    "strict": (lambda value: isinstance(value, bool), "true or false"),
    "jobs": (lambda value: type(value) is int, "a number of processes"),
    "trials": (lambda value: type(value) is int, "a number of traces"),
    "seconds": (_is_number, "a number"),
    "memory": (_is_number, "a number of megabytes"),
    "baseline": (lambda value: isinstance(value, str), "a path"),
    "dims": (_by_target(lambda size: type(size) is int and size >= 0), f"{_TARGETS}, of sizes"),
    "args": (_by_target(lambda value: True), f"{_TARGETS}, of arguments"),
}


def nearest(start: Path) -> Path | None:
    """The `pyproject.toml` of a folder, or of the nearest folder above that has one."""
    return next((file for folder in (start, *start.parents) if (file := folder / "pyproject.toml").is_file()), None)


def read(start: Path) -> Config:
    """The configuration for a folder.

    Raises:
        ConfigError: in one line, if the file is not TOML, has an unknown key, or a value of the wrong type.
    """
    file = nearest(start)
    if file is None:
        # Without a `pyproject.toml` the defaults hold, and paths are relative to the current folder.
        return Config(root=start)
    try:
        content = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    weft = _table(content.get("tool", {}).get("weft", {}), f"{file}: [tool.weft]", ("check",))
    table = _table(weft.get("check", {}), f"{file}: [tool.weft.check]", _KEYS)
    for key, value in table.items():
        is_valid, words = _KEYS[key]
        if not is_valid(value):
            raise ConfigError(f"{file}: [tool.weft.check] {key} = {value!r} is not {words}")
    # TOML has lists, and a frozen record must not share a list that a caller could change.
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return checked(dataclasses.replace(Config(root=file.parent), **values), f"{file}: [tool.weft.check] ")


def _table(value: Any, where: str, keys: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
    """A table whose keys are all known; a misspelt key would otherwise be ignored in silence."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a table")
    for key in value:
        if key not in keys:
            raise ConfigError(f"{where} has no key {key!r}; it has {', '.join(keys)}")
    return value


def checked(config: Config, where: str = "") -> Config:
    """Returns the configuration, if a run is possible with its numbers.

    Raises:
        ConfigError: in one line, if a run is not possible.
    """
    if config.jobs < 0:
        raise ConfigError(f"{where}jobs: {config.jobs} is not a number of processes; 0 means one for each core")
    for name in ("trials", "seconds"):
        if not getattr(config, name) > 0:
            # Written with `not`, so that NaN is refused as well.
            raise ConfigError(f"{where}{name}: {getattr(config, name)} is too small; each proof needs more than 0")
    if not config.memory >= 256:
        raise ConfigError(f"{where}memory: {config.memory:g} MB are too little; a worker takes about 300 to start")
    return config
