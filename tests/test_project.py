"""The project as a whole: packages, import rules, docstrings that run, and the length of the reading path."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinygrad_tf

ROOT = Path(__file__).parent.parent
MODULES = ["tinygrad_tf", *(m.name for m in pkgutil.walk_packages(tinygrad_tf.__path__, "tinygrad_tf."))]
SUBPACKAGES = [m for p in ("nn", "models") for m in [f"tinygrad_tf.{p}"]]


def test_the_package_list_equals_the_folders():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    moved = {folder: name for name, folder in settings["package-dir"].items()}
    folders = {
        str(path.parent.relative_to(ROOT)).replace(os.sep, ".")
        for top in ("tinygrad_tf", "nn", "models")
        for path in (ROOT / top).rglob("__init__.py")
    }
    expected = set()
    for folder in folders:
        top, _, rest = folder.partition(".")
        expected.add(".".join(filter(None, (moved.get(top, top), rest))))
    assert sorted(settings["packages"]) == sorted(expected)


def run(code, cwd=ROOT):
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("name", ["nn", "models"])
def test_bare_imports_say_the_right_name(name):
    result = run(f"import {name}")
    assert result.returncode == 1
    assert re.search(rf"ImportError: .*from tinygrad_tf import {name}", result.stderr)


def test_importing_needs_no_extra_and_compiles_nothing():
    result = run(
        "import sys, tinygrad_tf\n"
        "from tinygrad_tf import nn, models, optim, data, training\n"
        "extras = {'rich', 'safetensors', 'matplotlib', 'regex', 'torch', 'pytest'} & set(sys.modules)\n"
        "assert not extras, extras\n"
    )
    assert result.returncode == 0, result.stderr
    assert "compiling" not in result.stderr


def all_modules():
    names = set(MODULES)
    for package in SUBPACKAGES:
        names.add(package)
        names |= {m.name for m in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")}
    return sorted(names)


@pytest.mark.parametrize("name", all_modules())
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_reading_path_is_an_evening():
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## The reading path")[1].split("\n## ")[0]
    files = re.findall(r"`([\w/]+\.py)`", section)
    needed = {"graph", "tensor", "attention", "feed_forward", "residual", "transformer", "gpt"}
    assert needed <= {Path(f).stem for f in files}
    lengths = {f: len((ROOT / f).read_text().splitlines()) for f in files}
    assert sum(lengths.values()) <= 2000, lengths


def test_no_machine_paths():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("examples/*"), *ROOT.glob("tinygrad_tf/**/*.py"), ROOT / "Makefile"]:
        if path.is_file() and path.suffix != ".pyc":
            assert not re.search(r"(^|[\s'\"=])/(work|root|home)/", path.read_text()), path


def test_the_package_is_imported_without_numba():
    code = "import sys, tinygrad_tf; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
