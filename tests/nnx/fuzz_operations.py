"""What the functions of random programs do to the models: one table, with how often each thing is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass
class Features:
    """What the models of a program have.

    Attributes:
        streams: whether m has random streams.
        refs: whether m has a Variable that is a ref.
        sown: whether things are sown and popped.
        raw: whether m has an array as an attribute.
        dropout: whether m has a Dropout.
        array_refs: whether m has a JAX ref as an attribute.
        config: whether the models have a static attribute with an `==` of its own and no hash.
        named: whether a Variable of m names an axis.
        layer: how the layer that m has is called, or nothing.
        containers: those of "list", "dict" and "plain" that m has.
    """

    streams: bool = False
    refs: bool = False
    sown: bool = False
    raw: bool = False
    dropout: bool = False
    array_refs: bool = False
    config: bool = False
    named: bool = False
    layer: str = ""
    containers: set[str] = dataclasses.field(default_factory=set)


# Layers that m may have as `m.f`: how each is made, and called with an input `z(...)` of a shape that is said. In the
# dtype of the program, so that rounding does not grow.
LAYERS = {
    "nnx.Linear(2, 2, param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.Einsum('ab,bc->ac', (2, 2), (2,), param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.LoRALinear(2, 2, lora_rank=1, param_dtype=float, lora_param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.Conv(2, 2, (2,), padding='CIRCULAR', param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.ConvTranspose(2, 2, (2,), strides=2, param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.BatchNorm(2, param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.LayerNorm(2, param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.WeightNorm(nnx.Linear(2, 2, param_dtype=float, rngs=r), param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.SpectralNorm(nnx.Linear(2, 2, param_dtype=float, rngs=r), param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.MultiHeadAttention(1, 2, decode=False, param_dtype=float, rngs=r)": "m.f(z(3, 2))",
    "nnx.SimpleCell(2, 2, dtype=float, param_dtype=float, rngs=r)": "m.f(z(2), z(2))[1]",
    "nnx.GRUCell(2, 2, param_dtype=float, rngs=r)": "m.f(z(2), z(2))[1]",
    "nnx.LSTMCell(2, 2, param_dtype=float, rngs=r)": "m.f((z(2), z(2)), z(2))[1]",
    "nnx.OptimizedLSTMCell(2, 2, param_dtype=float, rngs=r)": "m.f((z(2), z(2)), z(2))[1]",
    "nnx.RNN(nnx.GRUCell(2, 2, param_dtype=float, rngs=r), rngs=False)": "m.f(z(3, 2), initial_carry=z(2))",
    "nnx.Sequential(nnx.Linear(2, 2, param_dtype=float, rngs=r), nnx.PReLU(param_dtype=float))": "m.f(z(3, 2))",
}

# An update from a Variable without metadata, which takes a named axis away.
_NEW_PARAM = "nnx.update({owner}, {{'w': nnx.Param({owner}.w[...] * {number})}})"

# Each is (text, weight, whether it changes structure). The names in braces are `Writer.operation`'s.
_ALWAYS = [
    ("{variable}[...] = {values}", 5.0, False),
    ("{variable}.set_value({values})", 1.0, False),
    ("{variable}[...] *= {number}", 2.0, False),
    ("nnx.update(m, nnx.state(m, nnx.Param))", 0.3, False),
    (_NEW_PARAM, 0.2, False),
    ("{where}.{name} = nnx.BatchStat(jnp.full({where}.w.shape, {number}))", 1.0, True),
    ("{where}.{name} = Node({number}, {where}.w)", 1.0, True),
    ("{where}.{name} = jnp.full({where}.w.shape, {number})", 0.1, True),
    ("{where}.{name} = nnx.List([Node({number}, {where}.w), {variable}])", 0.3, True),
    ("{where}.tag = {count}", 1.0, True),
    ("{where}.tag += 1", 0.5, True),
    ("if hasattr({where}, 'again'): del {where}.again", 0.3, True),
    ("if hasattr({where}, '{name}'): del {where}.{name}", 0.5, True),
    ("{where}.again = {variable}", 0.7, True),
    ("{where}.self_ = {owner}", 0.4, True),
    ("{owner}.w, {owner}.b = {owner}.b, {owner}.w", 0.3, True),
    ("{where}.w = nnx.Param(jnp.full({where}.w.shape, {number}))", 0.7, True),
    ("m.n = n", 0.4, True),
    ("m.tied, n.tied = n.w, m.w", 0.3, True),
]
_CONTAINERS = {
    "list": [
        ("m.l.append(nnx.Param(jnp.full(m.w.shape, {number})))", 0.7, True),
        ("m.l.append({variable})", 0.3, True),
        ("if len(m.l) > 2: m.l.pop()", 0.4, True),
        ("m.l[0] = Node({number}, m.w)", 0.5, True),
        ("m.l.insert(0, Node({number}, m.w))", 0.3, True),
        ("m.l[0], m.l[1] = m.l[1], m.l[0]", 0.1, True),
    ],
    "dict": [
        ("m.d['{name}'] = nnx.Cache(jnp.full(m.w.shape, {number}))", 0.7, True),
        ("m.d['o'] = Node({number}, m.w)", 0.4, True),
        ("m.d.again = {variable}", 0.3, True),
        ("if '{name}' in m.d: del m.d['{name}']", 0.3, True),
    ],
    "plain": [
        ("m.p.append(nnx.Param(jnp.full(m.w.shape, {number})))", 0.7, True),
        ("m.p[1]['{name}'] = Node({number}, m.w)", 0.5, True),
        ("m.p[1].pop('{name}', None)", 0.4, True),
        ("m.p[0] = nnx.Param(jnp.full(m.w.shape, {number}))", 0.3, True),
        ("m.p = nnx.data([m.p[0], m.p[1], {variable}])", 0.2, True),
    ],
}
_STREAMS = [
    ("m.r.noise()", 1.0, False),
    ("m.r.noise.count[...] += 2", 0.2, False),
    ("nnx.reseed(m, noise={count})", 0.5, False),
    ("with nnx.split_rngs(m, splits=2): {variable}[...] += m.r.noise.count[...].sum()", 0.3, False),
    ("x = x + like(nnx.fork_rngs(m, graph_updates=False).r.noise.uniform(), x)", 0.3, False),
    ("x = x + like(m.r.split(2).noise.key[...].shape[0], x)", 0.2, False),
    ("m.again_r = m.r.fork()", 0.4, True),
    ("m.r = nnx.Rngs(noise={count})", 0.3, True),
    ("m.stream = m.r.noise", 0.3, True),
]
_DROPOUT = [("x = m.drop(x)", 1.0, False), ("m.eval()", 0.3, True), ("m.drop.rate = 0.25", 0.2, True)]
_LAYER = [("x = x + like({heard}, x)", 6.0, False), ("m.w[...] += like({heard}, m.w)", 2.0, False)]
_REFS = [
    ("m.k[...] += like({number}, m.k)", 2.0, False),
    ("m.k[...] *= {number}", 0.5, False),
    ("m.k2 = nnx.BatchStat(jnp.full(m.w.shape, {number}), ref=True)", 0.3, True),
]
_ARRAY_REFS = [("m.q[...] += {number}", 2.0, False), ("m.q[...] = m.q[...] * {number}", 0.5, False)]
_CONFIG = [
    ("{owner}.config.memo['{name}'] = {count}", 1.0, False),
    ("x = x * {owner}.config.width", 2.0, False),
    ("{where}.config = Config({count})", 1.0, True),
    ("{where}.config = Config({owner}.config.width)", 1.0, True),
]
_SOWN = [
    ("m.sow(nnx.Intermediate, 'h', {variable}[...] * {number})", 1.5, True),
    ("{where}.sow(nnx.Intermediate, 'h', jnp.full({where}.w.shape, {number}))", 0.7, True),
    ("x = m.perturb('eps', x)", 0.7, True),
    ("nnx.pop(m, nnx.Intermediate)", 1.0, True),
    ("nnx.pop(m, nnx.Any(nnx.Intermediate, nnx.Perturbation))", 0.3, True),
    ("_, seen = nnx.capture(lambda m: m.sow(nnx.Intermediate, 'h', m.w[...]), nnx.Intermediate)(m)", 0.7, True),
]


def _rows(features: Features, names: Mapping[str, str]) -> list[tuple[str, float, bool]]:
    return [
        *_ALWAYS,
        *(row for name in sorted(features.containers) for row in _CONTAINERS[name]),
        *(_STREAMS if features.streams else ()),
        *(_DROPOUT if features.dropout else ()),
        *(_LAYER if names["heard"] else ()),
        *(_REFS if features.refs else ()),
        *(_ARRAY_REFS if features.array_refs else ()),
        *(_CONFIG if features.config else ()),
        *(_SOWN if features.sown else ()),
    ]


def operations(names: Mapping[str, str], features: Features, structural: float, metadata: float) -> dict[str, float]:
    """The lines that a function could have, with their weights.

    Args:
        names: what to put in place of the names in the table.
        features: what the models have.
        structural: a factor for what changes structure.
        metadata: a factor for what changes metadata.
    """
    weights = {
        text.format(**names): weight * (structural if changes else 1.0)
        for text, weight, changes in _rows(features, names)
        if metadata or not (features.named and text is _NEW_PARAM)
    }
    return weights | {"{variable}.set_metadata(note={count})".format(**names): 0.7 * metadata}
