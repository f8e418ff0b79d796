"""What a user runs, in processes of its own, with tiny settings."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
TINY = (
    "--n-layer 1 --n-head 2 --n-embd 16 --block-size 32 --batch-size 4 --dropout 0.1 --eval-every 3 --eval-batches 2"
).split()


def run(script, *options):
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def poem(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "poem.txt"
    path.write_text("床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n" * 30, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(poem):
    out = poem.parent / "straight"
    result = run("train_gpt.py", "--data", poem, *TINY, "--steps", 6, "--out", out)
    assert result.returncode == 0, result.stderr
    return out


def test_a_run_folder(trained):
    for name in ("config.json", "metrics.jsonl", "loss.png", "tokenizer.json", "ckpt/latest"):
        assert (trained / name).stat().st_size > 0
    assert json.loads((trained / "config.json").read_text())["options"]["warmup"] == 0


def test_bc_37_a_resumed_run_ends_with_the_same_bytes(trained, poem):
    """BC-37: a resumed run ends with the same bytes."""
    out = poem.parent / "broken"
    first = run("train_gpt.py", "--data", poem, *TINY, "--steps", 6, "--out", out, "--stop-at", 3)
    assert first.returncode == 0 and "--resume" in first.stdout
    second = run("train_gpt.py", "--resume", out)
    assert second.returncode == 0, second.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (out / "ckpt/000006" / name).read_bytes() == (trained / "ckpt/000006" / name).read_bytes()
    changed = run("train_gpt.py", "--resume", out, "--lr", "0.5")
    assert changed.returncode == 2 and "--lr" in changed.stderr and changed.stderr.count("\n") == 1


def test_generating(trained):
    options = (trained, "--prompt", "床前", "--max-new-tokens", 8, "--seed", 3, "--top", 2)
    first, second = run("generate.py", *options), run("generate.py", *options)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and first.stdout.startswith("床前")
    assert len(first.stdout.split("likeliest")[1].strip().splitlines()) == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--data", "nowhere.txt"],
        ["--steps", "0"],
        ["--lr", "nan"],
        ["--lr", "x"],
        ["--n-head", "3"],
        ["--warmup", "50", "--steps", "10"],
        ["--activation", "nothing"],
        ["--resume", "nowhere"],
        ["--unknown"],
        ["--dropout", "1.5"],
    ],
)
def test_bad_options_get_one_line(options, tmp_path):
    result = run("train_gpt.py", "--out", tmp_path / "run", *options)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1 and "error:" in result.stderr and "Traceback" not in result.stderr


def test_bad_data_gets_one_line(tmp_path):
    (tmp_path / "short.txt").write_text("abc")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    for name in ("short.txt", "latin.txt"):
        result = run("train_gpt.py", "--out", tmp_path / "run", "--data", tmp_path / name)
        assert result.returncode == 2 and result.stderr.count("\n") == 1 and name in result.stderr


def test_generate_errors(tmp_path, trained):
    for options in ([tmp_path], [trained, "--prompt", "Q"], [trained, "--temperature", "-1"]):
        result = run("generate.py", *options)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("script", ["write_your_own.py", "plain_training.py"])
def test_other_examples_run(script):
    result = run(script)
    assert result.returncode == 0, result.stderr
    numbers = [float(w.strip(";")) for w in result.stdout.split() if w.replace(".", "").strip(";").isdigit()]
    assert np.isfinite(numbers).all()
