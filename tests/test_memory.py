"""Freed memory stays with the process, unless the user has said how malloc is to work."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import numpy as np
import tinygrad_tf
def step():
    arrays = [np.ones(n, np.float32) for n in [100_000] * 60 + [10_000_000] * 2]  # all of it free again afterwards
    del arrays
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def faults(**variables: str) -> float:
    """Page faults in a step that allocates and frees 24 MB in small arrays, some 6000 pages, and two of 40 MB."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | variables
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_a_step_finds_the_memory_of_the_last_one_and_settings_of_the_user_hold() -> None:
    assert faults() < 100
    assert faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="33554432") > 1000
