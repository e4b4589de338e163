"""Every public name of the installed flax.nnx is here, with compatible parameters, or on the list of those to come."""

import inspect
import types

import pytest
from flax import nnx as flax_nnx
from weft import nnx

# What has yet to be written. This list only shrinks: a name that is here and exists fails the test.
TO_COME = {
    # summary, the bridge to Linen
    "bridge", "summary", "tabulate", "wrappers",
}  # fmt: skip

NAMES = sorted(name for name in dir(flax_nnx) if not name.startswith("_"))
HERE = [name for name in NAMES if name not in TO_COME]


def test_every_name_exists_or_is_to_come():
    assert [name for name in HERE if not hasattr(nnx, name)] == []


def test_the_list_of_names_to_come_only_shrinks():
    assert [name for name in sorted(TO_COME) if hasattr(nnx, name)] == []
    assert sorted(TO_COME - set(NAMES)) == []


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return {parameter.name: parameter.kind for parameter in found}


def accepts(ours, theirs):
    """Whether every call that fits their parameters fits ours."""
    kinds = set(ours.values())
    has_args = inspect.Parameter.VAR_POSITIONAL in kinds
    has_kwargs = inspect.Parameter.VAR_KEYWORD in kinds
    missing = []
    for name, kind in theirs.items():
        if name.startswith("_") or kind is inspect.Parameter.VAR_POSITIONAL:
            fits = name.startswith("_") or has_args
        elif kind is inspect.Parameter.VAR_KEYWORD:
            fits = has_kwargs
        elif kind is inspect.Parameter.POSITIONAL_ONLY:
            positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            fits = has_args or any(found in positional for found in ours.values())
        else:
            fits = name in ours or (has_args and has_kwargs)
        if not fits:
            missing.append(name)
    return missing


FUNCTIONS = [
    name
    for name in HERE
    if isinstance(getattr(flax_nnx, name), types.FunctionType) and parameters(getattr(flax_nnx, name)) is not None
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_same_parameters(name):
    assert accepts(parameters(getattr(nnx, name)), parameters(getattr(flax_nnx, name))) == []


CLASSES = [name for name in HERE if isinstance(getattr(flax_nnx, name), type)]
# Members of classes that have yet to be written.
MEMBERS_TO_COME = set()


def public_members(cls):
    return {
        name: value
        for base in cls.__mro__
        if base.__module__.startswith("flax.nnx")
        for name, value in vars(base).items()
        if not name.startswith("_") and name not in MEMBERS_TO_COME
    }


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_members(name):
    ours, theirs = getattr(nnx, name), getattr(flax_nnx, name)
    lacking = []
    for member, value in public_members(theirs).items():
        if isinstance(value, types.MemberDescriptorType) or not hasattr(ours, member):
            if member not in getattr(ours, "__annotations__", {}) and not hasattr(ours, member):
                fields = parameters(ours) or {}
                if member not in fields:
                    lacking.append(member)
            continue
        signature = parameters(getattr(theirs, member)) if callable(getattr(theirs, member, None)) else None
        if signature is not None and callable(getattr(ours, member)):
            lacking += [f"{member}({missing})" for missing in accepts(parameters(getattr(ours, member)), signature)]
    assert lacking == []


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_made_with_the_same_parameters(name):
    ours, theirs = getattr(nnx, name), getattr(flax_nnx, name)
    assert accepts(parameters(ours.__init__), parameters(theirs.__init__)) == []
