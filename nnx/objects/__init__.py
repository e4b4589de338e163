"""The bookkeeping of objects: which attributes are data or static, their order, and structural versions."""
