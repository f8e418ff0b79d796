"""Do our tests see a wrong gradient? Every mutant (see `mutants.py`), each run against the tests that reach it.

    python tests/mutation/run.py                         # all; run again, it goes on where it stopped
    python tests/mutation/run.py --only ops/elementwise  # those whose rule's name has this in it
    python tests/mutation/run.py --sample 20 --seed 0    # a random sample
    python tests/mutation/run.py --list                  # what there is
    python tests/mutation/run.py --report                # the score of what was run

pytest collects the tests once; all that follows happens in forks of that process, where the code of a rule is exchanged
for the mutant's before the first test. First the tests run on the package with every mutated expression marked, to see
which tests reach which expression, and which kernels a test launches. A mutant can only be seen by tests that reach it:
these run, the quickest first, until one fails. It is caught if one fails that passed before (or if the process dies, or
takes more than ten times the CPU time, and a minute, of the same tests before); it survives if all pass. A kernel's mutant
compiles what it changes anew. The results are lines of JSON in build/mutation; what was caught there is not run again,
unless its file has changed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutants import PACKAGE, ROOT, Mutant, Place, all_places, names

RESULTS = ROOT / "build" / "mutation"
TESTS = ["tests/ops", "tests/kernels", "tests/test_graph.py", "tests/test_function.py", "tests/test_func.py",
         "tests/test_tensor.py", "tests/nn", "tests/models"]  # fmt: skip

#: Mutants that change no gradient, and why: regular expressions over their names.
EQUIVALENT = {
    r"backward_tiles: (sign|factor|dropped): ds\[i \* TILE \+ j\] \* row\[c\]": "a key that holds NaN or inf has a score that is not "
    "finite, so ds is NaN or 0: the product is NaN or 0 with any sign and factor",
}


def equivalent(name: str) -> str | None:
    return next((why for pattern, why in EQUIVALENT.items() if re.search(pattern, name)), None)


# -- exchanging code ---------------------------------------------------------------------------------------------------


def edited(data: bytes, edits: Iterable[tuple[int, int, str]]) -> bytes:
    for start, end, text in sorted(edits, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data


def where(place: Place) -> str:
    return f"{place.file} {place.rule} {place.start}"


def marks(file: str, places: list[Place]) -> list[tuple[int, int, str]]:
    """Edits with which each expression says that it is run: E becomes (_reached("...") or (E))."""
    data = (PACKAGE / file).read_bytes()
    return [
        (p.start, p.end, f"(_reached({where(p)!r}) or ({data[p.start : p.end].decode()}))")
        for p in places
        if p.file == file
    ]


def exchange(file: str, edits: list[tuple[int, int, str]]) -> None:
    """Give the functions of a module of the package, which is imported, the code of its edited source."""

    def key(code: CodeType) -> Any:
        return code.co_name, code.co_firstlineno, tuple(code.co_positions())

    def pairs(a: CodeType, b: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
        yield a, b
        inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (a, b)]
        if len(inner[0]) == len(inner[1]):  # a lambda without its inner loop has nothing more to exchange
            for x, y in zip(*inner, strict=True):
                yield from pairs(x, y)

    path = PACKAGE / file
    data = path.read_bytes()
    codes = (compile(d, str(path), "exec", dont_inherit=True) for d in (data, edited(data, edits)))
    new = {key(a): b for a, b in pairs(*codes)}
    count = 0
    for function in [o for o in gc.get_objects() if isinstance(o, FunctionType)]:
        code = function.__code__
        if code.co_filename == str(path) and key(code) in new:
            function.__code__ = new[key(code)]
            count += 1
    assert count, f"no function of {file} is there"


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
    """A pytest plugin that collects the tests, and then, instead of running them, runs `work`."""

    def __init__(self, work: Callable[[Watcher], None]):
        self.work = work
        self.items: dict[str, Any] = {}
        self.reached: set[str] = set()
        self.launched: set[str] = set()
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: Any) -> bool:
        if session.testsfailed:
            raise session.Interrupted("some tests could not be collected")
        self.items = {item.nodeid: item for item in session.items}
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash else report.longrepr).splitlines()
            self.failed.append(f"{report.nodeid}: {message[0][:200] if message else ''}")

    def run(self, chosen: list[str], stop: bool) -> dict[str, list[Any]]:
        """Run these, up to the first that fails; for each its CPU seconds, what it reached and launched."""
        tests = {}
        for nodeid, after in zip(chosen, [*chosen[1:], None], strict=True):
            self.reached.clear()
            self.launched.clear()
            start = time.process_time()
            item = self.items[nodeid]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=self.items.get(after or ""))
            seconds = round(time.process_time() - start, 4)
            tests[nodeid] = [seconds, sorted(self.reached), sorted(self.launched)]
            if stop and self.failed:
                break
        return tests


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
                log = os.open(RESULTS / f"log-{os.getppid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                Path(file.name).write_text(json.dumps(function()))
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        before = time.monotonic()
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if seconds is not None and time.monotonic() - before > 60 * seconds:  # it waits for something
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.01)
        text = Path(file.name).read_text()
        sign = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return json.loads(text) if text else None, sign, usage.ru_utime + usage.ru_stime


def digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def the_map(places: list[Place], watcher: Watcher) -> dict[str, Any]:
    """For each test that passes: its CPU seconds, the expressions that it reaches, the kernels that it launches."""
    files = [f for t in TESTS for f in ([ROOT / t] if t.endswith(".py") else sorted((ROOT / t).rglob("*.py")))]
    code = [f for room in ("ops", "kernels") for f in (PACKAGE / room).glob("*.py")]
    kept = RESULTS / f"map-{digest([*files, *code, *PACKAGE.glob('*.py')])}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    print("running the tests once, to see what each of them reaches", flush=True)

    def tests() -> Any:
        from tinygrad_tf.kernels import compiling, runtime

        builtins._reached = watcher.reached.add  # type: ignore[attr-defined]
        for file in {p.file for p in places if p.file.startswith("ops")}:
            exchange(file, marks(file, places))
        call = runtime.Kernel.__call__

        def watched(self: Any, n_tasks: int, *arguments: Any) -> None:
            kinds = [str(getattr(a, "dtype", type(a).__name__)) for a in arguments]
            watcher.launched.add(f"{compiling.name_of(self.__wrapped__)} {' '.join(kinds)}")
            call(self, n_tasks, *arguments)

        runtime.Kernel.__call__ = watched  # type: ignore[method-assign, assignment]
        found = watcher.run(list(watcher.items), stop=False)
        failed = {f.partition(": ")[0] for f in watcher.failed}
        return {t: v for t, v in found.items() if t not in failed}

    found, sign, _ = in_a_fork(tests)
    if found is None:
        raise SystemExit(f"the tests could not be run (signal {sign}): see the log in {RESULTS}")
    beside = kept.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(found))
    beside.replace(kept)
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


def cached_code(mutant: Mutant, folder: Path) -> None:
    """The machine code of all that the mutant leaves as it is, from the package's own cache."""
    from tinygrad_tf.kernels import cache, compiling

    changed = kernels_with(mutant.file, mutant.rule)
    assert not any(k.symbols for k in compiling.Routine.known.values()), (
        "a kernel was compiled while tests were collected"
    )
    for file in cache.cache_folder().iterdir():
        if file.name.rpartition("-")[0] not in changed:
            shutil.copy(file, folder)
    cache._folder = folder


def run(mutant: Mutant, chosen: list[str], seconds: float, watcher: Watcher) -> dict[str, Any]:
    """Run the tests on the mutant."""
    is_kernel = mutant.file.startswith("kernels")
    with tempfile.TemporaryDirectory() as folder:

        def tests() -> Any:
            if is_kernel:
                cached_code(mutant, Path(folder))
            exchange(mutant.file, [(mutant.start, mutant.end, mutant.text)])
            count = len(watcher.run(chosen, stop=True))
            return {"failed": watcher.failed[:1], "tests": count}

        limit = 10 * seconds + 60 + (300 if is_kernel else 0)
        answer, sign, used = in_a_fork(tests, limit)
    used = round(used, 1)
    if answer is None:
        if not sign or (sign == signal.SIGKILL and used < limit):
            return {"result": "unclear", "test": "it waited for ever, or could not be run", "seconds": used}
        word = f"more than {limit:.0f} s" if sign in (signal.SIGXCPU, signal.SIGKILL) else f"signal {sign}"
        return {"result": "caught", "test": f"({word})", "seconds": used}
    if answer["failed"]:
        return {"result": "caught", "test": answer["failed"][0], "seconds": used}
    return {"result": "survived", "test": f"all {answer['tests']}", "seconds": used}


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
        sys.path.insert(0, str(ROOT))
        os.chdir(ROOT)
        flat = [p for of_rule in places.values() for p in of_rule]
        watcher = Watcher(lambda watcher: run_all(chosen, flat, known, watcher))
        pytest.main([*TESTS, "-q", "-s", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[watcher])
    report({name: mutant for name, (mutant, _) in chosen.items()}, load())


def run_all(
    chosen: dict[str, tuple[Mutant, Place]], places: list[Place], known: dict[str, dict[str, Any]], watcher: Watcher
) -> None:
    """Run each that was not caught before, and write down what came of it."""
    digests = {name: digest([PACKAGE / name]) for name in {p.file for p in places}}
    left = [
        (name, *pair) for name, pair in chosen.items()
        if equivalent(name) is None
        and (known.get(name, {}).get("result") != "caught" or known[name]["file"] != digests[pair[0].file])
    ]  # fmt: skip
    turn: Counter[str] = Counter()  # some of each rule first, so that a run that is stopped has seen all of them
    turns = {}
    for name, mutant, _ in left:
        turns[name] = turn[f"{mutant.file} {mutant.rule}"]
        turn[f"{mutant.file} {mutant.rule}"] += 1
    left.sort(key=lambda item: turns[item[0]] // 3)
    tests = the_map(places, watcher)
    with (RESULTS / "results.jsonl").open("a") as out:
        for i, (name, mutant, place) in enumerate(left):
            near = chosen_tests(place, tests)
            seconds = sum(tests[t][0] for t in near)
            result = (
                run(mutant, near, seconds, watcher) if near else {"result": "survived", "test": "no test reaches it"}
            )
            print(f"[{i + 1}/{len(left)}] {result['result']:8} {name} ({result['test']})", flush=True)
            out.write(json.dumps({"mutant": name, "file": digests[mutant.file], **result}) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
