"""A verdict follows from the program alone; a search that its budget ends has none, on any machine, idle or busy."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck.__main__ import main as command
from weft.typecheck.command.linter import judge_here
from weft.typecheck.errors import BudgetError
from weft.typecheck.proofs import explaining
from weft.typecheck.proofs.explaining import Budget
from weft.typecheck.proofs.prover import proofs_of, verify
from weft.typecheck.proofs.report import Contract, Verdict


def plain(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
    return x.T


def halves(x: Float[Array, "n h*d"], h: int) -> Float[Array, "n h d"]:
    if x.shape[1] // h % 2:
        raise ValueError(f"a head of {x.shape[1] // h} has no halves")
    first, second = jnp.split(x.reshape(x.shape[0], h, -1), 2, axis=-1)
    return jnp.concatenate([second, first], axis=-1)


def transposed(x: Float[Array, "n m"], w: Float[Array, "k m"]) -> Float[Array, "n k"]:
    return x @ w


def masked(x: Float[Array, "n m"], mask: Float[Array, "m"] | None = None) -> Float[Array, "n m"]:
    return x if mask is None else x.T * mask


PROGRAMS: dict[Callable[..., Any], Verdict] = {
    plain: Verdict.PROVED,
    halves: Verdict.HOLDS,
    transposed: Verdict.FAILS,
    masked: Verdict.FAILS,
}


def proof(program: Callable[..., Any], budget: Budget) -> Contract:
    (proof_of_program,) = proofs_of(program, {}, {}, budget)
    return proof_of_program.contract()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The assignments of all trials that searches make, in their order."""
    assignments: list[Any] = []
    run = explaining.run_trial
    monkeypatch.setattr(explaining, "run_trial", lambda *args, **how: assignments.append(args[1]) or run(*args, **how))
    return assignments


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_search_without_enough_trials_is_undecided_and_nothing_else(program: Callable[..., Any], tried: list[Any]):
    whole = proof(program, Budget())
    assert whole.verdict is PROGRAMS[program]
    enough = len(tried)
    verdicts = [proof(program, Budget(trials=number)).verdict for number in range(1, enough + 1)]
    decided = verdicts.index(PROGRAMS[program])
    assert decided > 0
    assert verdicts == [Verdict.UNDECIDED] * decided + [PROGRAMS[program]] * (enough - decided)
    assert str(proof(program, Budget(trials=enough))) == str(whole)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_search_that_runs_out_of_time_is_undecided(program: Callable[..., Any]):
    late = itertools.chain([0.0, 1.0], itertools.repeat(2.0))  # at the start, at the first trial, afterwards
    contract = proof(program, Budget(seconds=1.5, clock=lambda: next(late)))
    assert contract.verdict is Verdict.UNDECIDED
    assert not contract.failures
    assert contract.reason.startswith(
        "the search ended after 1.5 seconds (`seconds=` of `verify`, `--seconds` of `weft"
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_tried_and_found_does_not_depend_on_the_clock(program: Callable[..., Any], tried: list[Any]):
    usual = proof(program, Budget())
    trials = list(tried)
    for pace in (0.0, 0.001, 10.0):
        tried.clear()
        ticks = itertools.count(1)
        contract = proof(program, Budget(seconds=1e6, clock=lambda ticks=ticks, pace=pace: next(ticks) * pace))
        assert contract == usual
        assert [*map(str, tried)] == [*map(str, trials)]


def product(x: Float[Array, "f*e*d*c*b*a"], y: Float[Array, "a b c d e f"]) -> Float[Array, ""]:
    return x.sum() * y.sum()


def test_sizes_are_dealt_in_the_order_in_which_dims_are_written_in_each_process():
    (contract,) = verify(product).contracts
    assert list(contract.tried[0].items()) == list(zip("fedcba", (5, 7, 11, 13, 17, 19), strict=True))


def test_a_failure_is_shown_at_its_smallest_sizes_though_the_trials_are_used_up(tried: list[Any]):
    (finding,) = proof(transposed, Budget()).failures
    assert finding.sizes == {"n": 1, "m": 1, "k": 2}
    until_decided = next(n for n in itertools.count(1) if proof(transposed, Budget(trials=n)).failures)
    assert until_decided < len(tried)
    assert proof(transposed, Budget(trials=until_decided)).failures == (finding,)


def test_what_is_undecided_says_what_was_known():
    (contract,) = verify(halves, trials=2).undecided
    assert contract.reason == (
        "the search ended after 2 trials (`trials=` of `verify`, `--trials` of `weft check`); "
        "what is not explained yet: ValueError: a head of 11 has no halves (at n=5, h=7, d=11)"
    )
    (contract,) = verify(plain, trials=1).undecided
    assert str(contract) == (
        "plain: undecided\n  the search ended after 1 trials (`trials=` of `verify`, `--trials` of `weft check`); "
        "it held on the 1 assignments of sizes that were tried"
    )


def test_what_is_undecided_is_a_failure_under_strict_only():
    report = verify(plain, trials=1)
    assert report.ok
    assert report
    assert not report.proved
    assert report.verdict is Verdict.UNDECIDED
    strict = verify(plain, trials=1, strict=True)
    assert not strict.ok
    assert [one.rule for one in strict.failures] == ["undecided"]
    assert strict.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("budget", [{"trials": 0}, {"trials": -1}, {"seconds": 0}, {"seconds": float("nan")}])
def test_a_budget_that_nothing_can_be_tried_with_is_refused(budget: dict[str, Any]):
    with pytest.raises(BudgetError, match=r"a proof cannot be tried in .+\n  fix: give it some: (trials|seconds) > 0"):
        verify(plain, **budget)


PROGRAM = """
    from jaxtyping import Array, Float


    def project(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
        return x.T
"""
WHY = (
    "undecided: the search ended after 1 trials (`trials=` of `verify`, `--trials` of `weft check`); "
    "it held on the 1 assignments of sizes that were tried"
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "undecided_one.py").write_text(textwrap.dedent(PROGRAM))
    return "undecided_one.py"


@pytest.mark.parametrize("strict", [False, True])
def test_the_command_tells_of_it_in_each_format(strict: bool, program: str, capsys: pytest.CaptureFixture[str]):
    options = ["check", "--trials", "1", *(["--strict"] if strict else []), program]
    summary = "1 contract: 0 proved, 0 hold, 0 fail, 1 undecided"
    assert command(options, judge=judge_here) == int(strict)
    told = [f"{program}:5: project: {WHY}", summary] if strict else [f"{summary} (-v lists them)"]
    assert capsys.readouterr().out.splitlines() == told
    assert command([*options, "--format", "github"], judge=judge_here) == int(strict)
    said = f"::{'error' if strict else 'warning'} file={program},line=5,title=project::{WHY}"
    assert capsys.readouterr().out.splitlines() == [said, summary]
    assert command([*options, "--format", "json"], judge=judge_here) == int(strict)
    written = json.loads(capsys.readouterr().out)
    assert (written["summary"], written["exit_code"]) == (summary, int(strict))
    level = "error" if strict else "undecided"
    finding = {
        "level": level,
        "file": program,
        "line": 5,
        "name": "project",
        "message": WHY,
        "rule": "undecided",
        "program": "",
        "fix": None,
    }
    assert written["findings"] == [finding]


def test_the_command_refuses_a_budget_in_one_line(program: str, capsys: pytest.CaptureFixture[str]):
    assert command(["check", "--trials", "0", program]) == 2
    assert capsys.readouterr().err == "trials: 0 is too small; each proof needs more than 0\n"


def scanned(a: Float[Array, "t d"], b: Float[Array, "t d"]) -> tuple[Float[Array, "t"], Float[Array, "d"]]:
    def joined(first: tuple[Float[Array, "... d"], Float[Array, "... d"]], second: tuple[Array, Array]):
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, h = jax.lax.associative_scan(joined, (a, b))
    return jnp.sum(h, 1), h[:, -1]


def test_what_is_called_more_often_at_larger_sizes_gets_no_further_by_that():
    (contract,) = verify(scanned, trials=300).contracts
    assert contract.verdict is Verdict.FAILS
    assert dict(contract.failures[0].sizes) == {"t": 1, "d": 2}


def lost(x: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    return jnp.sum(x)


def test_a_result_that_lacks_the_axes_of_a_name_is_a_failure():
    assert "found f32[]: *b is (1,)" in str(verify(lost).failures[0])
