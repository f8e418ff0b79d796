"""Do our tests see a wrong gradient? Every mutant (see `mutants.py`), each run against the tests that reach it.

    python tests/mutation/run.py                         # all; run again, it goes on where it stopped
    python tests/mutation/run.py --only ops/elementwise  # those whose rule's name has this in it
    python tests/mutation/run.py --sample 20 --seed 0    # a random sample
    python tests/mutation/run.py --list                  # what there is
    python tests/mutation/run.py --report                # the score of what was run

First the tests run once on the package with every mutated expression marked, to see which tests reach which expression,
and which kernels a test launches. A mutant can only be seen by tests that reach it: these run, the quickest first, until
one fails. It is caught if one fails that passed before (or if the process dies, or takes more than ten times the CPU time,
and a minute, of the same tests before); it survives if all pass. The results are lines of JSON in build/mutation; what
was caught there is not run again, unless its file has changed. Each mutant runs in a fork of this process, which has
numpy, numba and pytest loaded; a kernel's mutant compiles what its tests use into an empty cache.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from mutants import PACKAGE, ROOT, Mutant, Place, all_places, names

RESULTS = ROOT / "build" / "mutation"
TESTS = ["tests/ops", "tests/kernels", "tests/test_graph.py", "tests/test_function.py", "tests/test_func.py",
         "tests/test_tensor.py", "tests/nn", "tests/models"]  # fmt: skip

#: Mutants that change no gradient, and why: regular expressions over their names.
EQUIVALENT: dict[str, str] = {}


def equivalent(name: str) -> str | None:
    return next((why for pattern, why in EQUIVALENT.items() if re.search(pattern, name)), None)


# -- the mutated package -----------------------------------------------------------------------------------------------


def site(folder: Path) -> Path:
    """The package as it is installed: layers and models inside."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "tinygrad_tf", ignore=ignored)
    for room in ("nn", "models"):
        shutil.copytree(ROOT / room, folder / "tinygrad_tf" / room, ignore=ignored)
    return folder


def edited(data: bytes, edits: Iterable[tuple[int, int, str]]) -> bytes:
    for start, end, text in sorted(edits, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data


def where(place: Place) -> str:
    return f"{place.file} {place.rule} {place.start}"


def mark(folder: Path, places: list[Place]) -> None:
    """Each expression of a gradient rule says when it is run: E becomes (_reached("...") or (E))."""
    for name in {p.file for p in places if p.file.startswith("ops")}:
        data = (PACKAGE / name).read_bytes()
        edits = [
            (p.start, p.end, f"(_reached({where(p)!r}) or ({data[p.start : p.end].decode()}))")
            for p in places
            if p.file == name
        ]
        (folder / "tinygrad_tf" / name).write_bytes(edited(data, edits))


def kernels_with(name: str, function: str) -> set[str]:
    """The functions whose machine code has that of `function` in it: `module.name` of kernels that lead to it."""
    uses: dict[str, set[str]] = {}
    compiled: set[str] = set()
    for path in (PACKAGE / "kernels").glob("*.py"):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef):
                here = f"{path.stem}.{node.name}"
                uses[here] = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                compiled |= {here} if node.decorator_list else set()
    found = {f"{Path(name).stem}.{function}"}
    if not found & compiled:  # it runs in Python, and launches a kernel
        module, called = Path(name).stem, uses[found.pop()]
        return {c for c in compiled if c.partition(".")[0] == module and c.rpartition(".")[2] in called}
    while True:
        more = {u for u, used in uses.items() if used & {f.rpartition(".")[2] for f in found}} - found
        if not more:
            return found
        found |= more


# -- running tests in a fork -------------------------------------------------------------------------------------------


class Watcher:
    """A pytest plugin: which tests to run, in which order, and what came of each."""

    def __init__(self, chosen: list[str] | None = None):
        self.order = None if chosen is None else {nodeid: n for n, nodeid in enumerate(chosen)}
        self.reached: set[str] = set()
        self.launched: set[str] = set()
        self.tests: dict[str, Any] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.order is not None:
            items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.reached.clear()
        self.launched.clear()
        self.start = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash else report.longrepr).splitlines()
            self.failed.append(f"{report.nodeid}: {message[0][:200] if message else ''}")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid}: not collected: {str(report.longrepr)[-200:]}")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.process_time() - self.start, 4)
        self.tests[nodeid] = [seconds, sorted(self.reached), sorted(self.launched)]


def run_tests(folder: Path, watcher: Watcher, files: list[str], options: list[str], log: Path) -> int:
    """Run pytest on the package in `folder`, in this process."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    import pytest

    import tinygrad_tf

    assert tinygrad_tf.__file__ and tinygrad_tf.__file__.startswith(str(folder)), tinygrad_tf.__file__
    options = [*options, "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *files], plugins=[watcher]))


def in_a_fork(function: Callable[[], Any], seconds: float | None = None) -> tuple[Any, int, float]:
    """What `function()` answers in a child that may use so much CPU time; its signal, and the time that it used."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setpgid(0, 0)
                if seconds is not None:
                    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
                Path(file.name).write_text(json.dumps(function()))
                code = 0
            finally:
                os._exit(code)
        before = time.monotonic()
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if seconds is not None and time.monotonic() - before > 60 * seconds:  # it waits for something
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
        text = Path(file.name).read_text()
        sign = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return json.loads(text) if text else None, sign, usage.ru_utime + usage.ru_stime


def digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def the_map(places: list[Place], folder: Path) -> dict[str, Any]:
    """For each test that passes: its CPU seconds, the expressions that it reaches, the kernels that it launches."""
    files = [f for t in TESTS for f in ([ROOT / t] if t.endswith(".py") else sorted((ROOT / t).rglob("*.py")))]
    name = f"map-{digest([*files, *PACKAGE.rglob('*.py')])}.json"
    kept = RESULTS / name
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    print("running the tests once, to see what each of them reaches", flush=True)
    mark(folder, places)

    def tests() -> Any:
        watcher = Watcher()
        builtins._reached = watcher.reached.add  # type: ignore[attr-defined]
        sys.path.insert(0, str(folder))
        from tinygrad_tf.kernels import runtime

        call = runtime.Kernel.__call__

        def watched(self: Any, n_tasks: int, *arguments: Any) -> None:
            kinds = [str(getattr(a, "dtype", type(a).__name__)) for a in arguments]
            watcher.launched.add(f"{runtime._name(self.__wrapped__)} {' '.join(kinds)}")
            call(self, n_tasks, *arguments)

        runtime.Kernel.__call__ = watched  # type: ignore[method-assign, assignment]
        run_tests(folder, watcher, TESTS, [], RESULTS / "map.log")
        failed = {f.partition(": ")[0] for f in watcher.failed}
        return {t: v for t, v in watcher.tests.items() if t not in failed}

    found, sign, _ = in_a_fork(tests)
    if found is None:
        raise SystemExit(f"the tests could not be run (signal {sign}): see {RESULTS / 'map.log'}")
    for file in {p.file for p in places}:
        shutil.copy(PACKAGE / file, folder / "tinygrad_tf" / file)
    kept.write_text(json.dumps(found))
    return dict(found)


def chosen_tests(place: Place, tests: dict[str, Any]) -> list[str]:
    """The tests that reach a place: the quickest of those that name the operation first; for a kernel those that compile least."""
    word = place.rule.partition(".")[0].strip("_")
    if place.file.startswith("ops"):
        near = [t for t, (_, reached, _) in tests.items() if where(place) in reached]
        return sorted(near, key=lambda t: (word not in t, tests[t][0]))
    kernels = kernels_with(place.file, place.rule)
    near = [t for t, (_, _, launched) in tests.items() if kernels & {n.partition(" ")[0] for n in launched}]
    return sorted(near, key=lambda t: (len(tests[t][2]), tests[t][0]))


def run(mutant: Mutant, chosen: list[str], seconds: float, folder: Path) -> dict[str, Any]:
    """Run the tests on the mutant."""
    file = folder / "tinygrad_tf" / mutant.file
    original = file.read_bytes()
    file.write_bytes(edited(original, [(mutant.start, mutant.end, mutant.text)]))
    cache = folder / "cache"

    def tests() -> Any:
        if mutant.file.startswith("kernels"):
            os.environ["TINYGRAD_TF_CACHE_DIR"] = str(cache)
        watcher = Watcher(chosen)
        files = list(dict.fromkeys(t.partition("::")[0] for t in chosen))
        code = run_tests(folder, watcher, files, ["-x"], RESULTS / f"mutant-{os.getpid()}.log")
        (RESULTS / f"mutant-{os.getpid()}.log").unlink()
        return {"failed": watcher.failed[:1], "code": code, "tests": len(watcher.tests)}

    limit = 10 * seconds + 60 + (300 if mutant.file.startswith("kernels") else 0)
    try:
        answer, sign, used = in_a_fork(tests, limit)
    finally:
        file.write_bytes(original)
        shutil.rmtree(cache, ignore_errors=True)
    if answer is None:
        if sign == signal.SIGKILL and used < limit:
            return {"result": "unclear", "test": "it waited for ever", "seconds": used}
        word = f"more than {limit:.0f} s" if sign in (signal.SIGXCPU, signal.SIGKILL) else f"signal {sign}"
        return {"result": "caught" if sign else "unclear", "test": f"({word})", "seconds": used}
    result = "caught" if answer["failed"] else "survived" if answer["code"] == 0 else "unclear"
    return {"result": result, "test": (answer["failed"] or [f"all {answer['tests']}"])[0], "seconds": round(used, 1)}


# -- the whole run -----------------------------------------------------------------------------------------------------


def load() -> dict[str, dict[str, Any]]:
    """The last result of each mutant."""
    found = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["mutant"]] = record
    return found


def report(mutants: dict[str, Mutant], results: dict[str, dict[str, Any]]) -> None:
    """The score by file, and who survived."""
    rows: dict[str, list[int]] = {}
    for name, mutant in mutants.items():
        row = rows.setdefault(mutant.file, [0, 0, 0, 0])
        result = results.get(name, {}).get("result")
        same = [result == "caught", result is not None, equivalent(name) is not None, True]
        rows[mutant.file] = [n + s for n, s in zip(row, same, strict=True)]
    rows["total"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    for file, (caught, run_, same, total) in rows.items():
        print(f"{file:32} {caught:4} of {run_:4} caught; {same} argued away, of {total}")
    for name in mutants:
        if results.get(name, {}).get("result") not in (None, "caught"):
            print(f"{results[name]['result']}: {name} ({results[name]['test']})")


def main() -> None:
    """Run the chosen mutants, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rules whose name (file and operation) contains this")
    parser.add_argument("--sample", type=int, help="so many, at random")
    parser.add_argument("--each", type=int, default=0, help="at most so many of each rule (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--report", action="store_true", help="only the score of what was run")
    options = parser.parse_args()
    places = all_places()
    generator = random.Random(options.seed)
    chosen: dict[str, tuple[Mutant, Place]] = {}
    for rule, of_rule in places.items():
        if options.only not in rule:
            continue
        pairs = [(m, p) for p in of_rule for m in p.mutants]
        named = list(zip(names(m for m, _ in pairs), pairs, strict=True))
        few = 0 < options.each < len(named)
        chosen |= dict(generator.sample(named, options.each) if few else named)
    if options.sample and options.sample < len(chosen):
        chosen = dict(generator.sample(list(chosen.items()), options.sample))
    if options.list:
        print(*chosen, f"{len(chosen)} mutants", sep="\n")
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    known = load()
    if not options.report:
        run_all(chosen, [p for of_rule in places.values() for p in of_rule], known)
    report({name: mutant for name, (mutant, _) in chosen.items()}, load())


def run_all(chosen: dict[str, tuple[Mutant, Place]], places: list[Place], known: dict[str, dict[str, Any]]) -> None:
    """Run each that was not caught before, and write down what came of it."""
    preload()
    digests = {name: digest([PACKAGE / name]) for name in {p.file for p in places}}
    left = [
        (name, *pair) for name, pair in chosen.items()
        if equivalent(name) is None
        and (known.get(name, {}).get("result") != "caught" or known[name]["file"] != digests[pair[0].file])
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = site(Path(temporary))
        tests = the_map(places, folder)
        with (RESULTS / "results.jsonl").open("a") as out:
            for i, (name, mutant, place) in enumerate(left):
                near = chosen_tests(place, tests)
                seconds = sum(tests[t][0] for t in near)
                result = (
                    run(mutant, near, seconds, folder) if near else {"result": "survived", "test": "no test reaches it"}
                )
                print(f"[{i + 1}/{len(left)}] {result['result']:8} {name} ({result['test']})", flush=True)
                out.write(json.dumps({"mutant": name, "file": digests[mutant.file], **result}) + "\n")
                out.flush()


def preload() -> None:
    """Load what every child needs; the package itself is loaded by the child."""
    import hypothesis  # noqa: F401
    import hypothesis.extra.numpy  # noqa: F401
    import numba
    import numba.core.ccallback  # noqa: F401
    import pytest  # noqa: F401

    numba.njit(lambda x: x + 1)(1)


if __name__ == "__main__":
    main()
