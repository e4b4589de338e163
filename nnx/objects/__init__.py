"""Objects: attributes that are data or static, their layout, and versions that say when it changed."""
