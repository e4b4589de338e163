"""`[tool.weft.check]` in the nearest `pyproject.toml`, and what is in force when the command line has had its say.

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

Paths are relative to the file. `dims` fixes sizes and `args` gives arguments, both for a function or a class.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """What the command cannot be run with: one line, exit code 2."""


@dataclass(frozen=True)
class Config:
    """What `weft check` is run with; the defaults are the command's.

    Attributes:
        paths, exclude: what to check, and patterns of what not.
        strict: whether warnings, and what is undecided, are failures.
        jobs: how many processes; 0 is one a core.
        trials, seconds: the budget of each contract.
        memory: of a worker, in megabytes.
        baseline: the file of accepted failures.
        dims, args: sizes and arguments by `module:name`.
        root: the folder of the file, which paths are relative to.
    """

    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strict: bool = False
    jobs: int = 0
    trials: int = 1000
    seconds: float = 60.0
    memory: float = 4096.0
    baseline: str | None = None
    dims: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class Settings:
    """What a verdict depends on beside the sources: the part of the configuration that workers are told.

    Attributes:
        calls: the file of recorded calls and the digest of its content; both empty if there is none.
    """

    only: str | None = None
    strict: bool = False
    trials: int = 1000
    seconds: float = 60.0
    dims: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, config: Config, only: str | None, calls: tuple[str, str]) -> Settings:
        """The settings that a configuration gives."""
        return cls(only, config.strict, config.trials, config.seconds, config.dims, config.args, calls)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _by_target(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(
            ":" in target and isinstance(table, dict) and all(inner(one) for one in table.values())
            for target, table in value.items()
        )

    return holds


_TARGETS = 'a table of tables by "module:name"'
# Of each key, what it has to be, and the same in words.
_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "paths": (_strings, "a list of strings"),
    "exclude": (_strings, "a list of patterns"),
    "strict": (lambda value: isinstance(value, bool), "true or false"),
    "jobs": (lambda value: type(value) is int, "a number of processes"),
    "trials": (lambda value: type(value) is int, "a number of traces"),
    "seconds": (_number, "a number"),
    "memory": (_number, "a number of megabytes"),
    "baseline": (lambda value: isinstance(value, str), "a path"),
    "dims": (_by_target(lambda size: type(size) is int and size >= 0), f"{_TARGETS}, of sizes"),
    "args": (_by_target(lambda value: True), f"{_TARGETS}, of arguments"),
}


def nearest(start: Path) -> Path | None:
    """The `pyproject.toml` of a folder, or of the first above that has one."""
    return next((one for folder in (start, *start.parents) if (one := folder / "pyproject.toml").is_file()), None)


def read(start: Path) -> Config:
    """The configuration that is in force in a folder.

    Raises:
        ConfigError: in one line, for a file that is no TOML, a key that does not exist, or a value of another kind.
    """
    file = nearest(start)
    if file is None:
        return Config(root=start)
    try:
        tools = tomllib.loads(file.read_text()).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    weft = tools.get("weft", {}) if isinstance(tools, dict) else {}
    if not isinstance(weft, dict):
        raise ConfigError(f"{file}: [tool.weft] is no table")
    if weft.keys() - {"check"}:
        raise ConfigError(f"{file}: [tool.weft] has no key {min(weft.keys() - {'check'})!r}; it has check")
    table = weft.get("check", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: [tool.weft.check] is no table")
    for key, value in table.items():
        if key not in _KEYS:
            raise ConfigError(f"{file}: [tool.weft.check] has no key {key!r}; it has {', '.join(_KEYS)}")
        holds, what = _KEYS[key]
        if not holds(value):
            raise ConfigError(f"{file}: [tool.weft.check] {key} = {value!r} is not {what}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return checked(dataclasses.replace(Config(root=file.parent), **given), f"{file}: [tool.weft.check] ")


def checked(config: Config, where: str = "") -> Config:
    """The same, if its numbers are such that a run can be made with them.

    Raises:
        ConfigError: in one line, if not.
    """
    if config.jobs < 0:
        raise ConfigError(f"{where}jobs: {config.jobs} processes cannot share the work; 0 is one a core")
    for name, unit in (("trials", "trials"), ("seconds", "seconds")):
        amount = getattr(config, name)
        if not amount > 0:
            raise ConfigError(f"{where}a proof cannot be tried in {amount} {unit}")
    if not config.memory >= 256:
        raise ConfigError(f"{where}memory: {config.memory:g} MB are too little; a worker takes about 300 to start")
    return config
