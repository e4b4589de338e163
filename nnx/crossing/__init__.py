"""The boundary of references: how a graph goes into a transform, and how mutation comes out as updates."""
