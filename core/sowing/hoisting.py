"""Hoisting: the interpreter that carries tagged values (see `tags`) out of control flow.

Words used here:

- *handler*: a function `handler(tag, values) -> values` that is called at a tag. One handler collects values
  (`capture`), another binds the tag again further out, a third records shapes. `evaluate` runs a jaxpr under a handler.
- *rule*: runs an equation whose inner jaxprs contain tags, so that the handler is called for these tags **outside** of
  the equation. `RULES` is the table. Every rule asks the handler for the *offsets* of the perturbations (stacked as the
  equation stacks), runs the equation with its jaxprs *hoisted*, and passes the sown values, now plain outputs, to the
  handler.
- *hoisted*: a jaxpr without tags that takes offsets as extra inputs and returns sown values as extra outputs.

When is a rule applied? JAX's transforms assume that an equation whose outputs nobody uses does not matter: under
`grad`, `scan` moves loop-invariant equations out of the loop and remat runs some of them twice; under `vmap`, `cond`
and `while_loop` with a batched predicate run branches that were not taken. Tags went missing or came twice. So a
control-flow equation is hoisted **when it is bound** (`patched`), before any transform sees it: the transforms
see ordinary control flow with more outputs, which they treat correctly. JAX stages functions with custom derivatives
without binding them first; their rules run when the jaxpr around them is hoisted, or is evaluated by `capture`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, JaxprEqn
from weft.core.edge import _jax, derivatives, equations
from weft.core.edge._jax import ClosedJaxpr, Params, Primitive
from weft.core.edge.contexts import capture_context
from weft.core.edge.patches import patched
from weft.core.sowing.tags import (
    CaptureError,
    Handler,
    Sown,
    Tag,
    bind_tag,
    capturing,
    tag_names,
    tag_p,
)

# Runs an equation so that the handler is called outside of it for the tags in its inner jaxprs.
Rule = Callable[[Params, list[jax.Array], Handler], list[jax.Array]]


@contextlib.contextmanager
def tracing_tags(scope: tuple[str, ...] | None = ()) -> Generator[None]:
    """A `with` block in which `sow` and `perturb` bind tags; with `None`, one in which they do not."""
    # JAX has no hook that sees an equation before `grad` and `vmap` transform it. It replaces `bind` itself, for remat.
    binds = [] if scope is None else [(primitive, "bind", _hoisted_bind(primitive)) for primitive in _CONTROL_FLOW]
    with patched(*binds), capture_context(scope):
        yield


def evaluate(jaxpr: Jaxpr, consts: Sequence[jax.Array], args: Sequence[jax.Array], handler: Handler) -> list[jax.Array]:
    """Runs a jaxpr, and calls the handler for every tag in it, at any depth, in program order."""
    return _jax.evaluate(jaxpr, consts, args, lambda eqn, values: _evaluate_equation(eqn, values, handler))


def _evaluate_equation(eqn: JaxprEqn, values: list[jax.Array], handler: Handler) -> Sequence[jax.Array]:
    if eqn.primitive is tag_p:
        return handler(eqn.params["tag"], values)
    if names := tag_names(eqn.params):
        if eqn.primitive not in RULES:
            raise CaptureError(
                f"a tag inside `{eqn.primitive}`, out of which capture cannot carry values",
                at=[f"name {name!r}" for name in names],
                fix=f"sow or perturb outside of the function that `{eqn.primitive}` holds, or return the value from it",
            )
        return RULES[eqn.primitive](eqn.params, values, handler)
    return _jax.bind_equation(eqn, values)


def ignore(_: Tag, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The handler that forgets tags."""
    return values


@dataclass(frozen=True, slots=True)
class Site:
    """One tag in a jaxpr, with the types of its leaves."""

    tag: Tag
    avals: tuple[ShapedArray, ...]


@dataclass(frozen=True, slots=True)
class Sites:
    """The tags of a jaxpr, in program order."""

    sown: tuple[Site, ...]
    perturbed: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A jaxpr without tags, `(*inputs, *offsets) -> (*outputs, *sown)`, and the tags that it had."""

    closed: ClosedJaxpr
    sites: Sites


def count_leaves(sites: Sequence[Site]) -> int:
    """How many arrays the tags at some sites hold together."""
    return sum(len(site.avals) for site in sites)


def regroup(flat: Sequence[jax.Array], sites: Sequence[Site]) -> Iterator[list[jax.Array]]:
    """Splits a flat list of leaves into one list for each site."""
    rest = iter(flat)
    return (list(islice(rest, len(site.avals))) for site in sites)


@_jax.remember_per_jaxpr
def hoist(closed: ClosedJaxpr) -> Hoisted:
    """Replaces the tags of a jaxpr by inputs (offsets) and outputs (sown values)."""
    hoisted, perturbed = _hoist_with_offsets(closed, ())
    # Which offsets the jaxpr needs is known after a first pass.
    return _hoist_with_offsets(closed, perturbed)[0] if perturbed else hoisted


def _hoist_with_offsets(closed: ClosedJaxpr, perturbed: tuple[Site, ...]) -> tuple[Hoisted, tuple[Site, ...]]:
    """Hoists a jaxpr that takes offsets for these sites; also returns the sites that it perturbs."""
    sown: list[Site] = []
    perturbing: list[Site] = []

    def run(*flat: jax.Array) -> list[jax.Array]:
        num_inputs = len(closed.in_avals)
        offsets, sown_values = regroup(flat[num_inputs:], perturbed), list[jax.Array]()

        def handler(tag: Tag, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
            site = Site(tag, tuple(map(_jax.strong_type_of, values)))
            if isinstance(tag, Sown):
                sown.append(site)
                sown_values.extend(values)
                return values
            perturbing.append(site)
            return list(map(_jax.add, values, next(offsets, ()))) if perturbed else values

        return [*evaluate(closed.jaxpr, closed.consts, flat[:num_inputs], handler), *sown_values]

    hoisted = _jax.trace(run, [*closed.in_avals, *chain.from_iterable(site.avals for site in perturbed)], like=closed)
    return Hoisted(hoisted, Sites(tuple(sown), perturbed)), tuple(perturbing)


def _with_tags_outside(
    bind: Callable[[list[jax.Array]], Sequence[jax.Array]], sites: Sites, handler: Handler, length: int | None = None
) -> list[jax.Array]:
    """Binds a hoisted equation, and calls the handler for its tags: with zeros for perturbations, which returns the
    offsets, and with the sown values.

    With a length, the offsets are stacked, as the sown values are then.
    """
    zeros = ([_jax.zeros(aval, length) for aval in site.avals] for site in sites.perturbed)
    offsets = [leaf for site, values in zip(sites.perturbed, zeros, strict=True) for leaf in handler(site.tag, values)]
    outs = list(bind(offsets))
    num_outs = len(outs) - count_leaves(sites.sown)
    for site, values in zip(sites.sown, regroup(outs[num_outs:], sites.sown), strict=True):
        handler(site.tag, values)
    return outs[:num_outs]


def _extended(primitive: Primitive, extend: Callable[[Params, ClosedJaxpr, int, int], Params]) -> Rule:
    """The rule of jit and scan: offsets are the last (scanned) inputs, sown values the last outputs."""

    def rule(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
        hoisted = hoist(params["jaxpr"])
        num_offsets, num_sown = count_leaves(hoisted.sites.perturbed), count_leaves(hoisted.sites.sown)
        extended = extend(params, hoisted.closed, num_offsets, num_sown)
        bind = functools.partial(primitive.bind, *args)
        return _with_tags_outside(
            lambda offsets: bind(*offsets, **extended), hoisted.sites, handler, params.get("length")
        )

    return rule


def _remat(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
    """Remat's jaxpr is open, so that constants of the hoisted one are operands, too, the first ones."""
    hoisted = hoist(_jax.close(params["jaxpr"]))
    jaxpr, consts = _jax.consts_as_inputs(hoisted.closed)
    extended = equations.extend_remat(params, jaxpr, len(consts), count_leaves(hoisted.sites.perturbed))
    operands = [*consts, *args]
    return _with_tags_outside(
        lambda offsets: _jax.remat_p.bind(*operands, *offsets, **extended), hoisted.sites, handler
    )


def _cond(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
    """Every branch takes the offsets of all branches and returns the sown values of all, with zeros for those of
    others."""
    branches = [hoist(branch) for branch in params["branches"]]
    sown = _union([branch.sites.sown for branch in branches])
    perturbed = _union([branch.sites.perturbed for branch in branches])
    sites = Sites(tuple(site for site, _ in sown), tuple(site for site, _ in perturbed))
    num_outs, num_args = len(params["branches"][0].out_avals), len(args) - 1

    def widen(branch: Hoisted) -> ClosedJaxpr:
        def run(*flat: jax.Array) -> list[jax.Array]:
            offsets = dict(zip(perturbed, regroup(flat[num_args:], sites.perturbed), strict=True))
            own_offsets = chain.from_iterable(offsets[key] for key in _numbered(branch.sites.perturbed))
            outs = _jax.run(branch.closed, [*flat[:num_args], *own_offsets])
            own_sown = regroup(outs[num_outs:], branch.sites.sown)
            own = dict(zip(_numbered(branch.sites.sown), own_sown, strict=True))
            every = (own[key] if key in own else map(_jax.zeros, key[0].avals) for key in sown)
            return [*outs[:num_outs], *chain.from_iterable(every)]

        offset_avals = chain.from_iterable(site.avals for site in sites.perturbed)
        return _jax.trace(run, [*branch.closed.in_avals[:num_args], *offset_avals], like=branch.closed)

    extended = dict(params, branches=tuple(map(widen, branches)))
    return _with_tags_outside(lambda offsets: _jax.cond_p.bind(*args, *offsets, **extended), sites, handler)


def _numbered(sites: Sequence[Site]) -> list[tuple[Site, int]]:
    """Each site with the number of equal sites before it: the n-th site of one branch is the n-th of another."""
    return [(site, sites[:i].count(site)) for i, site in enumerate(sites)]


def _union(branches: Sequence[Sequence[Site]]) -> list[tuple[Site, int]]:
    return list(dict.fromkeys(chain.from_iterable(map(_numbered, branches))))


def _while(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
    """Values that the body sows are carried, starting with zeros; the predicate is evaluated again for those it
    sows."""
    cond, body = params["cond_jaxpr"], hoist(params["body_jaxpr"])
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, init = args[: num_cond + num_body], args[num_cond + num_body :]
    # Offsets come last among the constants of the body; sown values come last in the carry.
    num_all = num_body + count_leaves(body.sites.perturbed)
    sown_avals = [aval for site in body.sites.sown for aval in site.avals]
    num_inputs = num_body + len(init)
    const_avals, carry_avals = body.closed.in_avals[:num_body], body.closed.in_avals[num_body:num_inputs]
    offset_avals = body.closed.in_avals[num_inputs:]

    def run_body(*flat: jax.Array) -> list[jax.Array]:
        carry = flat[num_all : num_all + len(init)]
        return _jax.run(body.closed, [*flat[:num_body], *carry, *flat[num_body:num_all]])

    extended = dict(
        params,
        body_nconsts=num_all,
        cond_jaxpr=_untagged(cond, sown_avals),
        body_jaxpr=_jax.trace(run_body, [*const_avals, *offset_avals, *carry_avals, *sown_avals], like=body.closed),
    )
    last = map(_jax.zeros, sown_avals)
    outs = _with_tags_outside(
        lambda offsets: _jax.while_p.bind(*consts, *offsets, *init, *last, **extended), body.sites, handler
    )
    if tag_names({"cond_jaxpr": cond}):
        evaluate(cond.jaxpr, cond.consts, [*args[:num_cond], *outs], handler)
    return outs


def _untagged(closed: ClosedJaxpr, ignored: Sequence[ShapedArray] = ()) -> ClosedJaxpr:
    """A jaxpr without its tags; it ignores additional inputs after its own."""

    def run(*flat: jax.Array) -> list[jax.Array]:
        return evaluate(closed.jaxpr, closed.consts, flat[: len(closed.in_avals)], ignore)

    return _jax.trace(run, [*closed.in_avals, *ignored], like=closed)


def _inline(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
    closed = _jax.close(params["call_jaxpr"])
    return evaluate(closed.jaxpr, closed.consts, args, handler)


def _custom_derivative(primitive: Primitive) -> Rule:
    """Outputs come from the function with its custom rule, sown values from a plain copy of its body.

    So the derivative of an output follows the rule, and that of a sown value, about which the rule says nothing, is
    that of the body. Under jit, XLA merges the two copies.
    """

    def rule(params: Params, args: list[jax.Array], handler: Handler) -> list[jax.Array]:
        call, hoisted = params["call_jaxpr"], hoist(params["call_jaxpr"])

        untagged = dict(params, call_jaxpr=_untagged(call))
        bind_params = derivatives.without_context(primitive.get_bind_params(untagged), lambda: tracing_tags(None))

        def custom(*inputs: jax.Array) -> list[jax.Array]:
            return list(primitive.bind(*inputs, **bind_params))

        body, sown = _jax.split_outputs(hoisted.closed, len(call.out_avals))
        if primitive is _jax.custom_vjp_call_p:
            # The body may have no derivative, which is a common reason for a rule. `custom_vjp` has no forward mode, so
            # that nothing is lost if this has none.
            sown = derivatives.differentiated_on_demand(sown)

        def bind(offsets: list[jax.Array]) -> list[jax.Array]:
            outs = derivatives.graft(custom, body, args, offsets) if offsets else custom(*args)
            return [*outs, *sown([*args, *offsets])]

        return _with_tags_outside(bind, hoisted.sites, handler)

    return rule


RULES: dict[object, Rule] = {
    _jax.jit_p: _extended(_jax.jit_p, equations.extend_jit),
    _jax.remat_p: _remat,
    _jax.scan_p: _extended(_jax.scan_p, equations.extend_scan),
    _jax.cond_p: _cond,
    _jax.while_p: _while,
    **dict.fromkeys(_jax.call_primitives(), _inline),
    _jax.custom_jvp_call_p: _custom_derivative(_jax.custom_jvp_call_p),
    _jax.custom_vjp_call_p: _custom_derivative(_jax.custom_vjp_call_p),
}


def _hoisted_bind(primitive: Primitive) -> Callable[..., Sequence[jax.Array]]:
    def bind(original: Callable[..., Sequence[jax.Array]], *args: jax.Array, **params: Any) -> Sequence[jax.Array]:
        if capturing() and tag_names(params):
            return RULES[primitive](params, list(args), bind_tag)
        return original(*args, **params)

    return bind


# floor: since JAX 0.11 `closed_call` is an equation like any other, which `grad` transforms by itself.
_CONTROL_FLOW = (_jax.jit_p, _jax.remat_p, _jax.scan_p, _jax.cond_p, _jax.while_p, *_jax.call_primitives())
