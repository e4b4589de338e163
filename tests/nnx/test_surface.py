"""Every public name of the installed flax.nnx is here, with compatible parameters."""

import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path
from typing import TypeVar

import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx.interop.installing import twin_module

from .agreement import followed

NAMES = sorted(name for name in dir(flax_nnx) if not name.startswith("_"))
BRIDGE = ["bridge", *(f"bridge.{name}" for name in ("interop", "module", "variables", "wrappers"))]


def test_every_name_exists():
    assert [name for name in NAMES if not hasattr(nnx, name)] == []


# Names that other code has to import to annotate, or to do what a layer does; of each of flax's own modules.
OF_MODULES = {
    "filterlib": "HasTag PathParts",
    "extract": "GraphDefState",
    "helpers": "ModuleDefApply",
    "nn.attention": "DotGeneralT Dtype Initializer PrecisionLike Shape",
    "nn.linear": "ConvGeneralDilatedT Dtype EinsumT Initializer LaxPadding PaddingLike _conv_dimension_numbers",
    "nn.normalization": "Initializer _abs_sq _canonicalize_axes _compute_stats _l2_normalize _normalize",
    "nn.recurrent": "Dtype Initializer Shape",
    "statelib": "PathParts",
    "transforms.transforms": "resolve_kwargs",
}


@pytest.mark.parametrize("name", OF_MODULES)
def test_names_of_modules_are_where_other_code_imports_them_from(name):
    theirs, ours = importlib.import_module(f"flax.nnx.{name}"), importlib.import_module(f"weft.nnx.{name}")
    names = OF_MODULES[name].split()
    assert [attribute for attribute in names if not hasattr(theirs, attribute)] == []
    assert [attribute for attribute in names if not hasattr(ours, attribute)] == []


MODULES = ["flax.nnx", *(module.name for module in pkgutil.walk_packages(flax_nnx.__path__, "flax.nnx."))]


@pytest.fixture(scope="module")
def left_out():
    """The names that names_left_out.md lists, by module."""
    text = Path(__file__).with_name("names_left_out.md").read_text()
    entries = re.findall(r"`([a-z_.]+): ([^`]*)`", text)
    return {
        module: {name for of, names in entries if of == module for name in names.split()}
        for module in (full.removeprefix("flax.nnx.").replace("flax.nnx", "nnx") for full in MODULES)
    }


@followed
@pytest.mark.parametrize("full", MODULES)
def test_a_module_has_what_flaxs_has_but_for_what_is_listed(full, left_out):
    theirs, ours = importlib.import_module(full), twin_module(full)
    names = {name for name in vars(theirs) if not re.fullmatch("__.*__", name)}
    # Submodules are there once they are imported, and which ones are is up to the other tests of this process.
    names -= {name for name in names if f"{full}.{name}" in MODULES}
    listed = left_out[full.removeprefix("flax.nnx.").replace("flax.nnx", "nnx")]
    assert sorted(name for name in names - listed if not hasattr(ours, name)) == []
    assert sorted(name for name in listed if hasattr(ours, name)) == []


@pytest.mark.parametrize(
    "name", ["nnx.nn.linear.MappingProxyType", "nnx.graphlib.tp", "nnx.transforms.iteration.struct"]
)
def test_what_flaxs_modules_import_is_there_where_it_is_installed(name):
    module, _, attribute = name.rpartition(".")
    assert getattr(twin_module(f"flax.{module}"), attribute) is getattr(
        importlib.import_module(f"flax.{module}"), attribute
    )


@pytest.mark.parametrize("name", BRIDGE)
def test_every_name_of_the_bridge_exists_and_takes_the_same_parameters(name):
    theirs, ours = importlib.import_module(f"flax.nnx.{name}"), importlib.import_module(f"weft.nnx.{name}")
    own = {
        attribute: value
        for attribute, value in vars(theirs).items()
        if not attribute.startswith("_") and getattr(value, "__module__", "").startswith("flax.nnx.bridge")
    }
    assert [
        attribute for attribute in own if not hasattr(ours, attribute) and not isinstance(own[attribute], TypeVar)
    ] == []
    functions = {
        attribute: parameters(value) for attribute, value in own.items() if isinstance(value, types.FunctionType)
    }
    assert {
        attribute: lacking
        for attribute, expected in functions.items()
        if (lacking := accepts(parameters(getattr(ours, attribute)), expected))
    } == {}
    for attribute in (attribute for attribute, value in own.items() if isinstance(value, type)):
        # `rngs` and `module` of a ToNNX are looked for when it has no variable of that name.
        members = {member for member in vars(own[attribute]) if not member.startswith("_")} - {"rngs", "module"}
        assert [member for member in sorted(members) if not hasattr(getattr(ours, attribute), member)] == [], attribute


def parameters(function):
    try:
        declared = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return {parameter.name: parameter.kind for parameter in declared}


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
    for name in NAMES
    if isinstance(getattr(flax_nnx, name), types.FunctionType) and parameters(getattr(flax_nnx, name)) is not None
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_same_parameters(name):
    assert accepts(parameters(getattr(nnx, name)), parameters(getattr(flax_nnx, name))) == []


CLASSES = [name for name in NAMES if isinstance(getattr(flax_nnx, name), type)]


def public_members(cls):
    return {
        name: value
        for base in cls.__mro__
        if base.__module__.startswith("flax.nnx")
        for name, value in vars(base).items()
        if not name.startswith("_")
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


# Public names of weft's that stand for something else here, by the reason. What is in no row is the same object.
DIFFERENT = {
    "a Variable, where weft has a role of plain arrays": (
        "BatchStat Cache Intermediate LoRAParam OptState Param Perturbation RngCount RngKey RngState"
    ),
    "an object that changes, where weft has a record that has successors": (
        "BatchNorm Bidirectional Conv ConvTranspose Dropout Einsum Embed GRUCell GroupNorm InstanceNorm LSTMCell "
        "LayerNorm Linear LinearGeneral LoRA Metric Module MultiHeadAttention MultiMetric OptimizedLSTMCell Optimizer "
        "PReLU RMSNorm RNN RoPE Sequential SimpleCell SpectralNorm WeightNorm"
    ),
    "a transform that writes into objects, with flax's options": (
        "checkify cond custom_vjp eval_shape fori_loop grad jit jvp make_jaxpr pmap remat scan shard_map switch "
        "transform_metadata value_and_grad vjp vmap while_loop"
    ),
    "of objects and their State": "map merge split update",
    "a function among its filters is asked with (path, value), where weft asks with (path, kind, leaf)": "All Any Not",
    "other parameters in flax": "avg_pool capture max_pool min_pool static tabulate",
}


def test_what_means_the_same_in_both_layers_is_the_same_object():
    weft_places = [importlib.import_module(f"weft{below}") for below in ("", ".filters", ".metrics", ".tree")]
    theirs = {name: getattr(place, name) for place in weft_places for name in place.__all__ if name in nnx.__all__}
    same = {name for name, thing in theirs.items() if getattr(nnx, name) is thing}
    assert {*theirs} - same == {name for names in DIFFERENT.values() for name in names.split()}
    assert {"PathContains", "WithTag", "Carry", "relu"} <= same
    assert len(same) > 24
