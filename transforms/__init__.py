"""Every JAX transform, declared once as a rule over the interpreter."""

__all__: list[str] = []
