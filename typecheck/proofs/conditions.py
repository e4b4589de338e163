"""What a program needs, tried at its edge: a need is stated for all sizes only where that could not be refuted.

The search finds needs from few samples, and several needs explain one sample: `n >= 8` holds at 10, and so does
"2 divides n". So each need is tried where it just holds, where it just does not, and beyond; what is said of one size
is read off a *profile*: small sizes, some larger ones, and those around the number itself. Then sizes are drawn at
random of all that the needs allow. What cannot be confirmed is not stated: the sizes that were tried are.

Every trial is a trace of the whole program, so the profile is coarse, and what lies between the last size that fails
and the first that holds is halved until they touch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.drawn import Sizes, draws
from weft.typecheck.proofs.needs import Needs, is_square
from weft.typecheck.proofs.options import at_guard
from weft.typecheck.proofs.trial import Trial

_PROFILE = (1, 2, 3, 4, 5, 6, 8, 9, 12, 15, 16, 25, 33, 60, 97, 128)
# Where all that is known is that size 1 is refused.
_SHORT_PROFILE = (1, 2, 3, 4, 6, 9, 16, 25)
# Sizes that one need more does not allow.
_OFF = 3
_ROUNDS = 4
# Which multiples of a number are tried where the first ones fail.
_FURTHER = (7, 11, 13)


@dataclass(frozen=True)
class Holds:
    """Whether a program holds at some sizes under some needs; None where no arguments can be made."""

    attempt: Callable[[Sizes, Needs], Trial]

    def __call__(self, sizes: Sizes, under: Needs) -> bool | None:
        try:
            return self.attempt(sizes, under).ok
        except Unbuildable:
            return None

    def guard(self, sizes: Sizes, under: Needs) -> str:
        """The place of the guard that refuses some sizes, in brackets; "" if none does."""
        return at_guard(self.attempt(sizes, under))


def confirmed(base: Trial, needs: Needs, attempt: Callable[[Sizes, Needs], Trial], fixed: frozenset[str]) -> Needs:
    """Needs that could be confirmed, in place of those that a search has found.

    Args:
        base: a trial that held.
        needs: what the search found.
        attempt: the trial at some sizes under some needs.
        fixed: keys that are not to be varied.
    """
    holds = Holds(attempt)
    given = {key: size for key, size in base.assignment.sizes.items() if isinstance(size, int)}
    needs = _unchained(given, needs, holds, fixed)
    needs = _related(given, needs, holds, fixed)  # an order that nothing needs would hide the small sizes of a profile
    for key in _with_numbers(needs):
        if key in given and key not in fixed:
            needs = _profiled(key, given, needs, holds)
    needs = _related(given, needs, holds, fixed)
    source = random.Random(0)
    for left in reversed(range(_ROUNDS)):
        wrong = next((sizes for sizes in draws(given, needs, source, fixed) if holds(sizes, needs) is False), None)
        if wrong is None:
            return needs
        if not left:
            break
        mended = _mended(wrong, given, needs, holds)
        # A size that is at least so large may have been all that a relation between two stood for.
        needs = _related(given, mended, holds, fixed)
        if needs.allows(wrong):  # the relation that keeps it out seemed needless beside few sizes
            needs = mended
    return _among(tuple(given.keys() - fixed), given, needs)


def _unchained(given: Sizes, needs: Needs, holds: Holds, fixed: frozenset[str]) -> Needs:
    """The needs with `a <= c` in place of `a <= b` and `b <= c`, where b was only what the sizes tried had between."""
    for (small, middle, one), (other, big, two) in itertools.permutations(needs.order, 2):
        if middle == other and small != big and {small, middle, big} <= given.keys() - fixed:
            apart = needs.without(order=(small, middle, one)).without(order=(other, big, two))
            shorter = apart.plus(order=(small, big, one * two))
            ends = [{**given, small: 3, big: 3 * one * two, middle: size} for size in (1, 50 * one * two)]
            if _all_hold([*ends, *draws(given, shorter, random.Random(1), fixed)], shorter, holds):
                return shorter
    return needs


def _all_hold(several: Iterable[Sizes], needs: Needs, holds: Holds) -> bool:
    """Whether a program holds at all of some sizes that needs allow, as far as arguments can be made, and at some."""
    found: set[bool | None] = set()
    for sizes in several:
        if needs.allows(sizes):
            found.add(holds(sizes, needs))
            if False in found:
                return False
    return True in found


def _with_numbers(needs: Needs) -> list[str]:
    keys = [key for key, factor in needs.multiples if isinstance(factor, int)]
    lists = needs.least, needs.equal, needs.most, needs.undivided, needs.unlike
    return list(dict.fromkeys([*keys, *(key for pairs in lists for key, _ in pairs), *needs.squares]))


def _without_numbers(key: str, needs: Needs) -> Needs:
    lists = ("least", "equal", "most", "undivided", "unlike", "among")
    kept = {name: tuple(one for one in getattr(needs, name) if one[0] != key) for name in lists}
    kept["multiples"] = tuple(one for one in needs.multiples if one[0] != key or isinstance(one[1], str))
    return dataclasses.replace(needs.without(squares=key), **kept)


def _profiled(key: str, given: Sizes, needs: Needs, holds: Holds) -> Needs:
    """The needs with what a profile says of one key in place of what was found of it."""
    rest = _without_numbers(key, needs)
    refused = [number for one, number in (*needs.most, *needs.undivided, *needs.unlike) if one == key]
    numbers = [number for one, number in (*needs.least, *needs.equal) if one == key] + refused
    equal = dict(needs.equal).get(key)
    # One size that is asked for, as of an array from outside, is no range: three neighbours say so, and save a profile.
    if equal is not None and not any(
        holds({**given, key: one}, rest) for one in (equal - 1, equal + 1, 2 * equal) if one > 0
    ):
        return needs
    unit = math.lcm(1, *(given.get(one, 1) for one in rest.divisors(key) if isinstance(one, str)))
    factors = [factor for one, factor in needs.multiples if one == key and isinstance(factor, int)] + refused
    near = [one for number in numbers for one in (number - 1, number, number + 1, 2 * number + 1)]
    near += [more for factor in factors for more in (factor, 2 * factor, 3 * factor, 3 * factor + 1)]
    least_only = numbers == [2] and len(_entries(key, needs)) == 1
    found: dict[int, bool] = {}
    guards: dict[int, str] = {}

    def tried(number: int) -> None:
        sizes = {**given, key: unit * number}
        if number > 0 and unit * number not in found and rest.allows(sizes):
            held = holds(sizes, rest)
            if held is not None:
                found[unit * number] = held
            if held is False:
                guards[unit * number] = holds.guard(sizes, rest)

    for number in _SHORT_PROFILE if least_only else sorted({*_PROFILE, *near}):
        tried(number)
    if least_only and not all(held for size, held in found.items() if size > unit):
        for number in _PROFILE:
            tried(number)
    if any(found.get(unit * factor) is False for factor in factors):
        for number in (factor * more for factor in factors for more in _FURTHER):
            tried(number)  # a multiple, and not a small one: the profile has few multiples of most numbers
    _close_in(found, unit, unit, tried)
    step = math.gcd(*(size for size, one in found.items() if one))
    if step > unit:
        _close_in(found, unit, step, tried)
    if any(guards.values()):
        _close_in_on_refused(found, unit, tried)
    held = tuple(one for one, held in found.items() if held)
    return _read_off(key, found, guards, unit, rest) or rest.plus(among=(key, held or (given[key],)))


def _close_in(found: Mapping[int, bool], unit: int, step: int, tried: Callable[[int], None]) -> None:
    """Tries sizes between the largest that fails and the next that holds, if all larger ones do, until they touch.

    Of multiples of a step alone: what lies between them says nothing of where they begin to hold.
    """
    while True:
        failing = max((size for size, one in found.items() if not one and size % step == 0), default=0)
        beyond = min((size for size in found if size > failing and size % step == 0), default=0)
        if not _halved(failing, beyond, found, unit, step, tried):
            return


def _halved(low: int, high: int, found: Mapping[int, bool], unit: int, step: int, tried: Callable[[int], None]) -> bool:
    """Tries the size in the middle of two, a multiple of a step; whether there was one, and it said something."""
    middle = (low + high) // 2 // step * step
    if not low or not high or high - low <= step or middle in found or not middle:
        return False
    tried(middle // unit)
    return middle in found


def _close_in_on_refused(found: Mapping[int, bool], unit: int, tried: Callable[[int], None]) -> None:
    """Tries what tells a guard against large sizes, against multiples, and against single sizes from one another."""
    for size in _undivided_by_others(size for size, one in found.items() if not one and size > unit)[:_MOST_REFUSED]:
        for number in (2 * size, 3 * size, size - unit, size + unit):
            tried(number // unit)
    step = math.gcd(*(size for size, one in found.items() if one)) or unit
    for factor in _FACTORS:
        tried(factor * step // unit)
    while True:
        held = [size for size, one in found.items() if one]
        top = max(held, default=0)
        above = min((size for size in found if size > top and size % step == 0), default=0)
        within = any(not one for size, one in found.items() if min(held, default=0) < size < top and size % step == 0)
        if within or not _halved(top, above, found, unit, step, tried):
            return


# Sizes that a guard refuses of which the neighbours and multiples are tried.
_MOST_REFUSED = 4
# What holds of multiples of a number holds of these of it.
_FACTORS = (3, 5, 7, 10, 11)


def _undivided_by_others(sizes: Iterable[int]) -> list[int]:
    """Those that none of the others divides."""
    found: list[int] = []
    for size in sorted(sizes):
        if all(size % one for one in found):
            found.append(size)
    return found


def _entries(key: str, needs: Needs) -> list[tuple[object, ...]]:
    return [one for one in (*needs.multiples, *needs.least, *needs.equal) if one[0] == key]


def _read_off(key: str, found: Mapping[int, bool], guards: Mapping[int, str], unit: int, needs: Needs) -> Needs | None:
    """What a profile says: from which size on, which multiples of what, and what guards refuse; None if neither."""
    held = [size for size, one in found.items() if one]
    if len(held) < 2:
        return needs.plus(equal=(key, held[0])) if held and max(found) > held[0] else None
    step, least = math.gcd(*held), min(held)
    if all((is_square(size) and size >= least) == one for size, one in found.items()):
        needs = needs.plus(squares=key)
        return needs.plus(least=(key, least)) if least > 1 else needs
    within = {size: one for size, one in found.items() if size % step == 0 and size >= least}
    if not all(within.values()):
        refusing = _refusing(key, within, guards, needs)
        if refusing is None:
            return None
        needs = refusing
    if step // unit > 1:
        needs = needs.plus(multiples=(key, step // unit))
    return needs.plus(least=(key, least)) if least > max(step, 1) else needs


def _refusing(key: str, found: Mapping[int, bool], guards: Mapping[int, str], needs: Needs) -> Needs | None:
    """What guards refuse of one key: large sizes, multiples of numbers, or single sizes. None if it is none of these.

    Only guards may refuse so: what fails otherwise, and only at some sizes, is a fault.
    """
    failing = [size for size, one in found.items() if not one]
    if not all(guards.get(size) for size in failing):
        return None
    top = max(size for size, one in found.items() if one)
    factors = _undivided_by_others(failing)
    if min(failing) > top and len(failing) > 1:
        needs = needs.plus(most=(key, top))
    elif all(any(size % one == 0 for one in factors) is not held for size, held in found.items()) and all(
        sum(size % one == 0 for size in failing) > 1 for one in factors
    ):
        for one in factors:
            needs = needs.plus(undivided=(key, one))
    elif all(found.get(2 * size) and found.get(3 * size) and found.get(size + 1) for size in failing):
        for size in failing:
            needs = needs.plus(unlike=(key, size))
    else:
        return None
    others = tuple(one for one in needs.guards if one[0] != key)
    return dataclasses.replace(needs, guards=(*others, (key, guards[failing[0]])))


def _related(given: Sizes, needs: Needs, holds: Holds, fixed: frozenset[str]) -> Needs:
    """The needs between two keys, each tried where it just holds and where it just does not."""
    for small, big, factor in needs.order:
        if not {small, big} <= given.keys() - fixed:
            continue
        others = needs.without(order=(small, big, factor))
        least = max([1, *(number for key, number in needs.least if key in (small, big))])
        below = _tried(given, others, holds, ({small: n, big: factor * n - 1} for n in (least + 2, 7 + least)))
        below = below or _tried(given, others, holds, _refused(given, needs, others, fixed))
        at = _tried(given, others, holds, ({small: n, big: factor * n} for n in (least, least + 3)))
        beyond = _tried(
            given, others, holds, ({small: n, big: factor * n + more} for n, more in ((3, 1), (4, 6), (5, 40)))
        )
        # `size <= t + 1` holds just below, too, and is no reason to drop `size <= t`, which is what can be said of it.
        far = ({small: n, big: max(factor * n // 3, least)} for n in (3 * least + 6, 3 * least + 21))
        if True in below and False not in (*_tried(given, others, holds, far), *at, *beyond):
            needs = others
        elif False in at and False not in beyond:
            needs = dataclasses.replace(needs, strict=needs.strict | {(small, big)})
        elif False in beyond:
            needs = _among((small, big), given, needs)
    for key, factor in needs.multiples:
        if isinstance(factor, int) or not {key, factor} <= given.keys() - fixed:
            continue
        others = needs.without(multiples=(key, factor))
        at = _tried(given, others, holds, ({factor: n, key: n * m} for n, m in ((2, 3), (3, 1), (4, 6))))
        # The second is for what only holds from some size on, as another need may say.
        off = _tried(given, others, holds, iter([{factor: 4, key: 21}, {factor: 4, key: 4 * given[key] + 1}]))
        if True in off and False not in (*at, *off):
            needs = others
    return needs


def _refused(given: Sizes, needs: Needs, others: Needs, fixed: frozenset[str]) -> Iterator[dict[str, int]]:
    """Sizes at random that the others allow, and that one need more does not."""
    source = random.Random(0)
    drawn = (sizes for _ in range(_ROUNDS) for sizes in draws(given, others, source, fixed))
    return itertools.islice((sizes for sizes in drawn if not needs.allows(sizes)), _OFF)


def _tried(given: Sizes, needs: Needs, holds: Holds, several: Iterator[dict[str, int]]) -> list[bool | None]:
    """Whether it holds at some sizes, of those that the other needs allow."""
    return [holds(sizes, needs) for sizes in ({**given, **one} for one in several) if needs.allows(sizes)]


def _mended(wrong: Sizes, given: Sizes, needs: Needs, holds: Holds) -> Needs:
    """The needs without what a draw has refuted: more of one key, a product, or the sizes that were tried."""
    for key, factor in needs.multiples:
        beside = next((one for one in needs.divisors(key) if one != factor), factor)
        unit = _size(factor, wrong) * _size(beside, wrong)
        if isinstance(factor, str) and beside != factor and wrong[key] % unit:
            parts = needs.without(multiples=(key, factor)).without(multiples=(key, beside))
            product = parts.plus(products=(key, beside, factor))
            several = ({**wrong, key: unit * more} for more in (1, 2, 3))
            if all(holds(sizes, product) for sizes in several if product.allows(sizes)):
                return product
    if (ordered := _ordered(wrong, given, needs, holds)) is not None:
        return ordered
    for key in wrong:
        nearer = {**wrong, key: given[key]}
        if wrong[key] != given[key] and needs.allows(nearer) and holds(nearer, needs):
            more = _profiled(key, {**given, **{one: wrong[one] for one in wrong if one != key}}, needs, holds)
            if not more.allows(wrong):
                return more
            return _among((key,), given, needs)
    responsible = [key for key in wrong if wrong[key] != given[key]]
    return _among(tuple(responsible), given, needs)


def _ordered(wrong: Sizes, given: Sizes, needs: Needs, holds: Holds) -> Needs | None:
    """The needs with an order of two sizes that a draw has not kept, without the bounds that stood for it, if any does.

    What was dealt may hold without being so ordered, as where nothing of an array is left: then only a bound of another
    size was found to matter.
    """
    unbound = dataclasses.replace(needs, least=())
    for small, big in itertools.permutations(wrong, 2):
        if wrong[small] > wrong[big] and (big, small) not in {(one, other) for one, other, _ in needs.order}:
            more = unbound.plus(order=(small, big, 1))
            edges = [{**wrong, big: wrong[small]}, {**wrong, small: wrong[big]}]
            if _all_hold([*edges, *draws(given, more, random.Random(1), frozenset())], more, holds):
                return more
    return None


def _size(one: str | int, sizes: Sizes) -> int:
    return sizes.get(one, 1) if isinstance(one, str) else one


def _among(keys: tuple[str, ...], given: Sizes, needs: Needs) -> Needs:
    known = dict(needs.among)
    return dataclasses.replace(needs, among=(*needs.among, *((key, (given[key],)) for key in keys if key not in known)))
