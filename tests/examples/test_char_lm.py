"""The language model example: what it writes and reaches, that it goes on exactly, and how it fails."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
import weft

SCRIPT = Path(__file__).parents[2] / "examples" / "char_lm.py"
TINY = ["--width", 16, "--layers", 2, "--heads", 2, "--context", 16, "--batch", 4, "--length", 20, "--every", 5]


def command(*arguments):
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


# As the tests run, but for their eight devices.
FLAGS = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS}


def run(*arguments, **variables):
    environment = {**ENVIRONMENT, **variables}
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of Python files: small, and the same on every machine."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(3):
        lines = [f"def function_{i}(x):\n    return x + {i * number}\n" for i in range(120)]
        (folder / f"file_{number}.py").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
def test_killed_and_resumed_it_has_the_same_losses_and_the_same_text(text, tmp_path):
    options = [*TINY, "--steps", 60, "--text", text, "--out"]
    whole = run(*options, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    checkpoint = tmp_path / "killed" / "char_lm.safetensors"
    with subprocess.Popen(command(*options, checkpoint.parent), env=ENVIRONMENT, stdout=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 300
        while not checkpoint.exists() and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
    assert not (checkpoint.parent / "char_lm.png").exists()
    resumed = run(*options, checkpoint.parent, "--resume", checkpoint)
    assert resumed.returncode == 0, resumed.stderr
    losses = [(tmp_path / folder / "char_lm.csv").read_text() for folder in ("whole", "killed")]
    assert losses[0] == losses[1]
    assert len(losses[0].splitlines()) == 1 + 60
    files = [(tmp_path / folder / "char_lm.safetensors").read_bytes() for folder in ("whole", "killed")]
    assert files[0] == files[1]
    said = [result.stdout.partition("\n─")[0].splitlines()[-1] for result in (whole, resumed)]
    assert said[0] == said[1]
    assert matplotlib.image.imread(checkpoint.parent / "char_lm.png").std() > 0.05
    values = [float(line) for line in losses[0].splitlines()[1:]]
    assert np.mean(values[-5:]) < np.mean(values[:5]) - 1


@pytest.mark.slow
def test_a_poisoned_step_is_told_at_the_module_where_it_overflows(text, tmp_path):
    result = run(*TINY, "--steps", 20, "--poison", 8, "--text", text, "--out", tmp_path / "out")
    assert result.returncode == 1
    message, at, inside, *rest = result.stderr.strip().splitlines()
    assert re.match(r"char_lm: .* gives -?(inf|nan).*, first seen in the (forward|backward) pass", message)
    assert re.match(r"  at: GPT\.\w+.* \(\w+\.__call__\), .*\.py:\d+: .*called at .*char_lm\.py:\d+", at)
    assert inside.startswith("  inside: jit")
    assert any(re.match(r"  reaches: .*output\[1\]\.model\.", line) for line in rest)
    assert "5/20" in result.stdout  # what was right before is shown, and the fault is the next thing


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("char_lm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["char_lm"] = module  # where annotations are looked up
    spec.loader.exec_module(module)
    yield vars(module)
    del sys.modules["char_lm"]


@pytest.fixture(scope="module")
def model(example):
    return example["GPT"](16, 2, 2, 8, key=jax.random.key(0))


@pytest.mark.slow
def test_what_is_sampled_is_what_the_model_says_without_a_cache(example, model):
    # Longer than the window: the cache has to forget as the training's mask does.
    prompt = example["encoded"]("def ")
    text = example["sample"](model, prompt, jax.random.key(1), length=12, temperature=0.0, top_p=1.0)
    whole = jnp.concatenate([prompt, text])
    logits, _ = model(whole)
    assert logits[3:-1].argmax(-1).tolist() == text.tolist()


def test_batches_go_on_with_the_very_next_one(example):
    text, chosen = example["encoded"]("abcdefghij" * 20), types.SimpleNamespace(context=8, batch=3, seed=0)
    data = example["batches"](text, chosen)
    before = [next(data) for _ in range(2)]
    state = data.get_state()
    after = [next(data) for _ in range(70)]  # beyond the first epoch
    again = example["batches"](text, chosen)
    again.set_state(state)
    np.testing.assert_array_equal([next(again) for _ in range(70)], after)
    assert before[0].shape == (3, 9)
    assert not np.array_equal(before[0], before[1])
    assert all(bytes(window.astype(np.uint8)).decode() in "abcdefghij" * 20 for window in after[-1])


def damaged(folder):
    weft.save_checkpoint(folder / "whole", weft.Linear(2, 3, key=jax.random.key(0)))
    (folder / "damaged").write_bytes((folder / "whole").read_bytes()[:-5])
    return ["--resume", folder / "damaged"], "char_lm: .*damaged is damaged: "


def missing(folder):
    return ["--resume", folder / "nowhere"], "char_lm: there is no checkpoint at .*nowhere"


def no_text(folder):
    return ["--text", folder / "nowhere"], "char_lm: .*nowhere has too little Python"


@pytest.mark.parametrize("failure", [damaged, missing, no_text])
def test_a_wrong_path_or_checkpoint_is_one_line_and_writes_nothing(failure, fails, tmp_path):
    arguments, message = failure(tmp_path)
    assert re.fullmatch(message + ".*", fails(*TINY, *arguments, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_help_and_bad_options(fails, capsys):
    assert fails("--help") == 0
    helped = capsys.readouterr().out
    assert all(option in helped for option in ("--steps", "--every", "--temperature", "--top-p", "--resume", "--text"))
    for options, message in [
        (["--steps", 0], "--steps must be at least 1"),
        (["--width", 9], "--width must be a multiple"),
        (["--top-p", 0], "--top-p is in"),
    ]:
        assert fails(*options) == 2
        assert message in capsys.readouterr().err
