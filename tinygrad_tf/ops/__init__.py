"""Differentiable operations: each forward beside its gradient rule; fused ones beside their plain definition."""
