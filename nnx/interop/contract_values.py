"""Abstract arguments for proofs: values for parameters that are annotated with `nnx.Rngs` or `nnx.Optimizer`.

`nnx.Rngs` gets a stream with an abstract key. `nnx.Optimizer` gets an Adam optimizer for a model among the other
arguments: an annotation does not name the transformation, and the shapes in a training step do not depend on it.
"""

from __future__ import annotations

import re
from typing import Any

from weft.nnx.modules.module import Module
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.training.optimizer import ModelAndOptimizer, Optimizer
from weft.nnx.variable.kinds import Param
from weft.typecheck.arguments import values
from weft.typecheck.arguments.abstract import abstractly
from weft.typecheck.arguments.builder import Builder, Scope, Unbuildable, random_keys
from weft.typecheck.language.annotations import Instance, RecordOf


def _rngs(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    return abstractly(Rngs, random_keys()[0])


def _stream(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    return abstractly(lambda key: RngStream(key, tag=place.rpartition(".")[2]), random_keys()[0])


def _optimizer(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    import optax

    model = _model_for(builder, spec, place, scope)
    # Adam has a count and two moments, so the abstract state has both kinds of optimizer Variables.
    tx = optax.with_extra_args_support(optax.adam(1e-3))
    optimizer = abstractly(lambda model: spec.cls(model, tx, wrt=Param), model)
    if isinstance(optimizer, ModelAndOptimizer):
        optimizer.model = model  # the same object as the other argument, for a step that takes both
    return optimizer


def _model_for(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    """Chooses the model of an optimizer: one of the class in its annotation; of several, by its name."""
    models = {name: value for name, value in scope.values.items() if isinstance(value, Module)}
    for argument in spec.arguments:
        if isinstance(argument, RecordOf):
            of_class = {name: model for name, model in models.items() if isinstance(model, argument.cls)}
            if not of_class:
                return builder.build(argument, f"{place}.model", scope)
            models = of_class
    if not models:
        raise Unbuildable(f"{place}: no argument is a Module for which to build this {spec.cls.__name__}")
    name = place.rpartition(".")[2]
    return models[min(models, key=lambda model: -_similarity(model, name))]


def _similarity(model: str, optimizer: str) -> int:
    """Scores two names by words with a common start: `gen` and `opt_g`, `policy` and `policy_optimizer`."""
    words = [word for word in re.split(r"_|\d+", optimizer.lower()) if word]
    parts = [part for part in re.split(r"_|\d+", model.lower()) if part]
    same = 2 * (re.findall(r"\d+", model) == re.findall(r"\d+", optimizer))
    return same + sum(4 for word in words for part in parts if word.startswith(part) or part.startswith(word))


for _cls, _build in {Rngs: _rngs, RngStream: _stream, Optimizer: _optimizer, ModelAndOptimizer: _optimizer}.items():
    values.register_object(_cls, _build, last=_build is _optimizer)
values.BY_NAME["rngs"] = lambda builder, place, scope: _rngs(builder, Instance(Rngs), place, scope)
