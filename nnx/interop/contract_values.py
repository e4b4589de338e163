"""Abstract values for arguments that are annotated with classes of this package, for proofs.

`nnx.Rngs` gets streams over an abstract key. `nnx.Optimizer` gets the state of Adam for a model among the other
arguments: which transformation it is, an annotation does not say, and a training step does not depend on it.
"""

from __future__ import annotations

import re
from typing import Any

import jax
from weft.nnx.modules.module import Module
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.training.optimizer import ModelAndOptimizer, Optimizer
from weft.nnx.variable.kinds import Param
from weft.typecheck.arguments import values
from weft.typecheck.arguments.abstract import abstractly
from weft.typecheck.arguments.builder import Builder, Scope, Unbuildable, key_dtype
from weft.typecheck.language.annotations import Instance, RecordOf


def _rngs(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    return abstractly(Rngs, jax.ShapeDtypeStruct((), key_dtype()))


def _stream(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    return abstractly(lambda key: RngStream(key, tag=place.rpartition(".")[2]), jax.ShapeDtypeStruct((), key_dtype()))


def _optimizer(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    import optax

    model = _model_for(builder, spec, place, scope)
    tx = optax.with_extra_args_support(optax.adam(1e-3))
    optimizer = abstractly(lambda model: spec.cls(model, tx, wrt=Param), model)
    if isinstance(optimizer, ModelAndOptimizer):
        optimizer.model = model  # the very one that may be another argument
    return optimizer


def _model_for(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    """The model that an optimizer is for: of the class that it is annotated with, called alike, or else the first."""
    models = {name: value for name, value in scope.values.items() if isinstance(value, Module)}
    for given in spec.given:
        if isinstance(given, RecordOf):
            of_class = {name: one for name, one in models.items() if isinstance(one, given.cls)}
            if not of_class:
                return builder.build(given, f"{place}.model", scope)
            models = of_class
    if not models:
        raise Unbuildable(f"{place}: no argument is a Module that it could be the {spec.cls.__name__} of")
    name = place.rpartition(".")[2]
    return models[min(models, key=lambda one: -_alikeness(one, name))]


def _alikeness(model: str, optimizer: str) -> int:
    """How many words of two names begin alike: `gen` and `opt_g`, `policy` and `policy_optimizer`."""
    words = [one for one in re.split(r"_|\d+", optimizer.lower()) if one]
    parts = [one for one in re.split(r"_|\d+", model.lower()) if one]
    same = 2 * (re.findall(r"\d+", model) == re.findall(r"\d+", optimizer))
    return same + sum(4 for one in words for two in parts if one.startswith(two) or two.startswith(one))


for _cls, _build in {Rngs: _rngs, RngStream: _stream, Optimizer: _optimizer, ModelAndOptimizer: _optimizer}.items():
    values.register_object(_cls, _build, last=_build is _optimizer)
values.BY_NAME["rngs"] = lambda builder, place, scope: _rngs(builder, Instance(Rngs), place, scope)
