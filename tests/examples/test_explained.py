"""The claims of examples/explained at a reduced size, and the frame that judges them."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from examples.explained.frame import Check, Experiment, Result, Size, experiments  # noqa: E402

KNOWN = experiments()
NOT_MET = {  # what does not hold as stated; all else does
    "attention_and_ffn_divide_the_work": {"no_ffn_facts"},  # without an FFN, attention layers learn the facts, too
    "pre_norm_and_post_norm": {"post_gradient"},  # the gradient does not shrink, and yet post-norm does not train
    "scaling": {"mean"},  # a few rows keep their gradient
    "why_four_times_wider": {"factors"},  # the width that is needed grows with the facts
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_claim(name):
    report = KNOWN[name].measure([11], Size.QUICK)
    assert {c.key for c in KNOWN[name].checks if not report.met(c)} == NOT_MET.get(name, set()), report.table()


@pytest.mark.parametrize("name", KNOWN)
def test_the_docstring_states_every_threshold(name):
    experiment = KNOWN[name]
    text = " ".join(experiment.paragraphs)
    assert all(re.search(rf"(^| ){word}\. ", text) for word in ("Claim", "Expected", "Control"))
    assert re.search("[\u4e00-\u9fff]", experiment.text), "the Chinese terms"
    numbers = {float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text)}
    limits = {limit for c in experiment.checks for limit in (c.at_least, c.at_most) if limit is not None}
    assert limits <= numbers, f"not in the docstring: {limits - numbers}"


def example(values, checks):
    return Experiment("a.b", "T\n\nClaim. x", 1, checks, lambda seed, size: Result(values[seed]), lambda f, r: None)


@pytest.mark.parametrize(
    "values, control, verdict",
    [
        ([{"a": 1.0, "b": 1.0}] * 2, False, "holds"),
        ([{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}], False, "holds in part"),
        ([{"a": 0.0, "b": float("nan")}], False, "does not hold"),
        ([{"a": 1.0, "b": 0.0}], True, "undecided"),
        ([{"a": 0.0, "b": 1.0}], True, "does not hold"),
    ],
)
def test_verdicts(values, control, verdict):
    checks = (Check("a", "first", at_least=0.5), Check("b", "second", 0.5, 2, control))
    report = example(values, checks).measure(range(len(values)))
    assert report.verdict == verdict
    assert ("expected ≥ 0.5" in report.by_how_much) == (verdict != "holds")
    assert report.table().count("NOT MET") == sum(row.met is False for row in report.rows)


def test_what_is_not_measured_is_an_error():
    with pytest.raises(KeyError, match="no.*'a'"):
        example([{"b": 1.0}], (Check("a", "first", at_least=0.5),)).measure([0])
    with pytest.raises(ValueError, match="at_least or at_most"):
        Check("a", "nothing asked")


def run(*options):
    command = [sys.executable, "-m", "examples.explained", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_listing_and_bad_options():
    listed = run()
    assert listed.returncode == 0 and all(f" {name}\n" in listed.stdout for name in KNOWN)
    for options in (["nothing"], ["--seeds", "0"], ["causality", "--all"]):
        result = run(*options)
        assert result.returncode == 2 and "error:" in result.stderr and "Traceback" not in result.stderr


def test_a_page_with_everything_in_it_and_an_error_for_what_fails(tmp_path, monkeypatch, capsys):
    main = importlib.import_module("examples.explained.__main__")
    broken = Experiment("x.broken", "T", 1, (), lambda seed, size: 1 / 0, lambda f, r: None)
    monkeypatch.setattr(main, "experiments", lambda: {"broken": broken, "causality": KNOWN["causality"]})
    assert main.main(["--all", "--quick", "--seeds", "1", "--out", str(tmp_path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (
        "因果掩码" in page and "holds" in page and "ZeroDivisionError" in page and (tmp_path / "causality.png").exists()
    )
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert main.main(["causality", "--quick", "--seeds", "1", "--out", str(tmp_path)]) == 0
