"""The examples that import weights: files in the layouts of GPT-2 and Llama give the logits of formulas written out."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import pretrained

VOCAB, LENGTH, D, HEADS, KV, HIDDEN, LAYERS = 11, 6, 8, 4, 2, 12, 2
IDS = np.array([3, 1, 4, 1, 5])
RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.normal(0, 0.4, shape).astype(np.float32)


def gpt2_weights():
    shapes = {"wte.weight": (VOCAB, D), "wpe.weight": (LENGTH, D), "ln_f.weight": (D,), "ln_f.bias": (D,)}
    for i in range(LAYERS):
        for name, size in {"ln_1": (D,), "ln_2": (D,)}.items():
            shapes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size}
        for name, size in {
            "attn.c_attn": (D, 3 * D),
            "attn.c_proj": (D, D),
            "mlp.c_fc": (D, 4 * D),
            "mlp.c_proj": (4 * D, D),
        }.items():
            shapes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[1:]}
    return {name: drawn(*shape) for name, shape in shapes.items()}


def llama_weights():
    head = D // HEADS
    layer = {
        "input_layernorm": (D,),
        "post_attention_layernorm": (D,),
        "self_attn.q_proj": (D, D),
        "self_attn.k_proj": (KV * head, D),
        "self_attn.v_proj": (KV * head, D),
        "self_attn.o_proj": (D, D),
        "mlp.gate_proj": (HIDDEN, D),
        "mlp.up_proj": (HIDDEN, D),
        "mlp.down_proj": (D, HIDDEN),
    }
    shapes = {"model.embed_tokens.weight": (VOCAB, D), "model.norm.weight": (D,), "lm_head.weight": (VOCAB, D)}
    for i in range(LAYERS):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {name: drawn(*shape) for name, shape in shapes.items()}


def attend(q, k, v):
    """Causal attention of `(seq, heads, depth)`; each head of keys serves a group of those of queries."""
    k, v = (np.repeat(one, q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)


def gpt2_logits(w):
    def norm(x, at):
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return y * w[f"{at}.weight"] + w[f"{at}.bias"]

    def linear(x, at):
        return x @ w[f"{at}.weight"] + w[f"{at}.bias"]

    x = w["wte.weight"][IDS] + w["wpe.weight"][: len(IDS)]
    for i in range(LAYERS):
        q, k, v = np.split(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, -1)
        q, k, v = (one.reshape(len(IDS), HEADS, -1) for one in (q, k, v))
        x = x + linear(attend(q, k, v), f"h.{i}.attn.c_proj")
        h = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def llama_logits(w):
    def norm(x, at):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{at}.weight"]

    def turned(x):
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] / 10_000.0 ** (np.arange(half) / half)
        angles = np.concatenate([angles, angles], -1)[:, None]
        halves = np.concatenate([-x[..., half:], x[..., :half]], -1)
        return x * np.cos(angles) + halves * np.sin(angles)

    x = w["model.embed_tokens.weight"][IDS]
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (y @ w[f"{at}.self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = (one.reshape(len(IDS), -1, D // HEADS) for one in (q, k, v))
        x = x + attend(turned(q), turned(k), v) @ w[f"{at}.self_attn.o_proj.weight"].T
        y = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (y @ w[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ w["lm_head.weight"].T


SIZES = {
    "gpt2": (pretrained.GPT2, (VOCAB, LENGTH, D, HEADS, LAYERS), gpt2_weights, gpt2_logits),
    "llama": (pretrained.Llama, (VOCAB, D, HIDDEN, HEADS, KV, LAYERS), llama_weights, llama_logits),
}


@pytest.mark.parametrize("family", SIZES)
def test_a_file_in_a_familys_layout_gives_its_logits(family, tmp_path):
    model, sizes, make, formula = SIZES[family]
    weights = make()
    save_file(weights, tmp_path / "model.safetensors")
    load = getattr(pretrained, family)
    loaded = load(weft.init(model, *sizes, abstract=True), tmp_path / "model.safetensors")
    logits = weft.jit(model.__call__)(loaded, jnp.asarray(IDS))
    np.testing.assert_allclose(logits, formula(weights), rtol=2e-4, atol=2e-5)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded))


def test_the_command_imports_a_file_and_goes_on_from_tokens(tmp_path, capsys):
    save_file(gpt2_weights(), tmp_path / "m.safetensors")
    sizes = f"--layers {LAYERS} --heads {HEADS} --vocab {VOCAB} --features {D} --length {LENGTH}"
    pretrained.main(["gpt2", str(tmp_path / "m.safetensors"), *sizes.split()])
    assert "parameters\nnext token" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="do not fit the model"):
        pretrained.main(["gpt2", str(tmp_path / "m.safetensors"), *sizes.replace("--layers 2", "--layers 1").split()])
