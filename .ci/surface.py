"""Compares the public names of the installed weft with those of the last release, by griffe.

    surface.py              prints what breaks and is not in this version's section of CHANGELOG.md; exits with 1 if any
    surface.py write        writes .ci/surface/VERSION.pyi, the names and signatures of the installed weft

griffe reads sources, and most of weft's names are imported on first use, which no source says. So a release leaves a
stub: one file, in which each namespace is a class, so that `weft.tree.split` has this path for griffe, too.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import weft

if TYPE_CHECKING:
    import griffe

HERE = Path(__file__).resolve().parent
STUBS = HERE / "surface"
NAMESPACES = ("tree", "filters", "errors", "debug", "metrics", "ops", "typecheck", "nnx")
EMPTY = inspect.Parameter.empty


def names_of(module: ModuleType) -> list[str]:
    """The public names of a namespace: what it exports; without an `__all__`, what weft has written for it."""
    if hasattr(module, "__all__"):
        names = {*module.__all__, *({"plan"} if module is weft and hasattr(weft, "plan") else ())}
    else:
        homes = {name: getattr(getattr(module, name), "__module__", None) or "" for name in dir(module)}
        # A file's own names are those that it defines, unless it is there to gather the names of others.
        names = {name for name, home in homes.items() if home == module.__name__}
        names = names or {name for name, home in homes.items() if home.startswith("weft.")}
    return sorted(name for name in names if name[0] != "_" and not isinstance(getattr(module, name), ModuleType))


def is_of_weft(value: object) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("weft")


def parameters(value: object, *before: str) -> str | None:
    """The parameters of something that is called, without annotations; None if Python cannot tell them."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in before]
    own = [as_called(parameter, index) for index, parameter in enumerate(signature.parameters.values())]
    return str(inspect.Signature([*first, *own]))


def as_called(parameter: inspect.Parameter, index: int) -> inspect.Parameter:
    """A parameter as calls know it: without an annotation, and without a name if it goes by position only."""
    default = EMPTY if parameter.default is EMPTY else Shown(parameter.default)
    name = f"at{index}" if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else parameter.name
    return parameter.replace(name=name, annotation=EMPTY, default=default)


class Shown:
    """A default as it is written in a stub: what only its own process can print, an address or a class, is `...`."""

    def __init__(self, value: object):
        self.text = repr(value)

    def __repr__(self) -> str:
        try:
            ast.parse(self.text, mode="eval")
        except SyntaxError:
            return "..."
        return self.text


def lines_of(name: str, value: object) -> list[str]:
    """The stub of one name."""
    if inspect.isclass(value) and is_of_weft(value):
        caught = [base.__name__ for base in value.__mro__ if base.__module__ == "builtins" and base is not value]
        bases = [base for base in caught if base.endswith("Error")]
        head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        return [head, *(f"    {line}" for line in members(value))]
    # The parameters of a function of JAX's are JAX's, and change with its version.
    called = parameters(value) if callable(value) and is_of_weft(value) else None
    return [f"{name}: object"] if called is None else [f"def {name}{called}: ..."]


def members(cls: type) -> list[str]:
    made = parameters(cls, "self")
    lines = [] if made is None else [f"def __init__{made}: ..."]
    for name in sorted({*dir(cls), *getattr(cls, "__dataclass_fields__", ())}):
        owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
        if (
            not is_of_weft(owner)
            or (name[0] == "_" and name != "__call__")
            or (owner is not cls and owner is weft.Module)
        ):
            continue
        value = inspect.getattr_static(cls, name, None)
        is_called = inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod))
        called = parameters(getattr(cls, name)) if is_called else None
        lines.append(f"{name}: object" if called is None else f"def {name}{called}: ...")
    return lines or ["..."]


def stub() -> str:
    """The public names of the installed weft."""
    lines = [f"# The public names of weft {weft.__version__}, written by .ci/surface.py: a namespace is a class."]
    lines += [line for name in names_of(weft) for line in lines_of(name, getattr(weft, name))]
    for namespace in NAMESPACES:
        try:
            module = importlib.import_module(f"weft.{namespace}")
        except ModuleNotFoundError:  # not all of them are in every version
            continue
        lines.append(f"class {namespace}:")
        lines += [f"    {line}" for name in names_of(module) for line in lines_of(name, getattr(module, name))]
    return "\n".join(lines) + "\n"


def last_release() -> Path | None:
    """The stub of the newest release before this version."""

    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    stubs = [file for file in STUBS.glob("*.pyi") if number(file.stem) < number(weft.__version__)]
    return max(stubs, key=lambda file: number(file.stem), default=None)


def breaks(before: str, after: str) -> dict[str, list[str]]:
    """What breaks programs between two stubs, by the path of the name."""
    import griffe  # `write` does without it

    broken: dict[str, list[str]] = {}
    old, new = (griffe.visit("weft", Path("weft.pyi"), text) for text in (before, after))
    for breakage in griffe.find_breaking_changes(old, new):
        path, kind = breakage.obj.path, breakage.kind.value.lower()
        parameter = next((v for v in (breakage.old_value, breakage.new_value) if isinstance(v, griffe.Parameter)), None)
        # What weft writes anew may be a function where JAX's own was an object, whose parameters nobody tells.
        if isinstance(breakage, griffe.ObjectChangedKindBreakage) and griffe.Kind.CLASS not in (
            breakage.old_value,
            breakage.new_value,
        ):
            continue
        if isinstance(breakage, griffe.ObjectRemovedBreakage) and is_moved(path, new):
            continue
        broken.setdefault(path, []).append(f"{kind} ({parameter.name})" if parameter else kind)
    return broken


def is_moved(path: str, new: griffe.Module) -> bool:
    """Whether a former name has another place, which errors and `weft migrate` tell."""
    from weft.core import public_names

    owner, _, name = path.rpartition(".")
    parts = (public_names.place_of(owner, name) or "").split(".")[1:]
    return bool(parts) and parts[0] in new.members and (len(parts) == 1 or parts[1] in new.members[parts[0]].members)


def is_named(path: str, words: set[str]) -> bool:
    """Whether words have a name of a path: that of the function or class, or that of the class around it."""
    parts = path.split(".")[1:]
    return not words.isdisjoint(parts[1:] if parts[0] in NAMESPACES else parts)


def main() -> int:
    if sys.argv[1:] == ["write"]:
        STUBS.mkdir(exist_ok=True)
        (STUBS / f"{weft.__version__}.pyi").write_text(stub())
        return 0
    last = last_release()
    if last is None:
        print(f"no release before {weft.__version__} has left its names in {STUBS}")
        return 1
    section = (HERE.parent / "CHANGELOG.md").read_text().partition(f"## {weft.__version__}")[2].partition("\n## ")[0]
    broken = breaks(last.read_text(), stub())
    words = {word for code in re.findall(r"`([^`]+)`", section) for word in re.findall(r"\w+", code)}
    missing = {path: kinds for path, kinds in broken.items() if not is_named(path, words)}
    for path, kinds in missing.items():
        print(f"{path}: {', '.join(kinds)}")
    print(
        f"since weft {last.stem} {len(broken)} names break programs; CHANGELOG.md does not name {len(missing)} of them"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
