"""The errors of contracts: a broken contract, an unreadable annotation, a refused promotion, a wrong mode or budget."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.errors import WeftError


class ContractError(WeftError, TypeError):
    """A value does not fit its annotation.

    Args:
        what: the place, the expected value and the actual one.
        at: the module path, and the line of the annotation.
        bound: where each relevant dim was bound.
        fix: the likely fix, for common mistakes.
        more: further facts, shown with `WEFT_TYPECHECK_VERBOSE=1`.

    >>> import jax.numpy as jnp
    >>> from jaxtyping import Array, Float
    >>> from weft.typecheck import check
    >>> try:
    ...     check(jnp.ones((2, 3)), Float[Array, "n n"])
    ... except ContractError as error:
    ...     print(error.what)
    value should be f32[n=2,n=2], and is f32[2,3]
    """

    def __init__(
        self,
        what: str,
        *,
        at: str | Iterable[str] = (),
        bound: Iterable[str] = (),
        fix: str | None = None,
        more: Iterable[str] = (),
    ):
        self.bound, self.more = tuple(bound), tuple(more)
        super().__init__(what, at=at, fix=fix)

    def _message(self) -> str:
        lines = [self.what, *(f"  at: {place}" for place in self.at), *(f"  where: {line}" for line in self.bound)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.inside:
            lines.append(f"  inside: {self.inside}")
        return "\n".join((*lines, *(f"  {line}" for line in self.more)))


class PromotionError(WeftError, ValueError):
    """An implicit promotion of ranks or dtypes, refused by the mode `strict`."""

    # A layer raises it without knowing its path in the model, which the checker adds.
    of_layer = True


class ModeError(WeftError, ValueError):
    """A mode of checking that does not exist."""


class BudgetError(WeftError, ValueError):
    """A budget that allows a proof no trial at all."""


class AnnotationError(WeftError, ValueError):
    """An annotation that cannot be read, or a dim expression that cannot be evaluated; its message is one line."""


class InternalError(WeftError, RuntimeError):
    """Weft itself failed, which is no finding about a program; `verify` and `weft check` say so."""
