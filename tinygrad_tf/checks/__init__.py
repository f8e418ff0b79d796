"""Checking gradients against finite differences."""
