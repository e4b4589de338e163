"""The errors of contracts: one that does not hold, an annotation that cannot be read, a promotion that is refused."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.errors import WeftError


class ContractError(WeftError, TypeError):
    """A value that is not what its annotation says.

    Args:
        what: the place, what was expected there and what was found.
        at: the module path, and where the annotation stands.
        bound: where each dim that matters was bound.
        fix: the likely fix, for common slips.
        more: what else there is to know, for `WEFT_TYPECHECK_VERBOSE=1`.

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
        lines = [self.what, *(f"  at: {place}" for place in self.at), *(f"  where: {one}" for one in self.bound)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.inside:
            lines.append(f"  inside: {self.inside}")
        return "\n".join((*lines, *(f"  {one}" for one in self.more)))


class PromotionError(WeftError, ValueError):
    """An implicit promotion of ranks or dtypes, where the mode `strict` refuses it."""

    of_layer = True


class ModeError(WeftError, ValueError):
    """A mode of checking that does not exist."""


class BudgetError(WeftError, ValueError):
    """A budget of a proof that nothing can be tried with."""


class AnnotationError(WeftError, ValueError):
    """An annotation that cannot be read, or a dim expression that cannot be evaluated. Always one clear line."""
