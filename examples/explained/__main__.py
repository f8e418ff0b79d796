"""List the experiments, or run some: `python -m examples.explained [NAME ...] [--all] [--out DIR]`."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
import traceback
from pathlib import Path

from .frame import Experiment, Report, Size, experiments


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.explained", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments to run; none: list them all")
    parser.add_argument("--all", action="store_true", help="run all of them")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="more work, which may take longer than three minutes each")
    size.add_argument("--quick", action="store_true", help="less work, a few seconds each: to see that it runs")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many seeds (default 3)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the first of them (default 0)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for pictures and the report page index.html")
    options = parser.parse_args(argv)
    if options.seeds < 1 or options.first_seed < 0:
        parser.error(
            f"--seeds must be at least 1 and --first-seed at least 0, got {options.seeds} and {options.first_seed}"
        )
    if options.names and options.all:
        parser.error("give names or --all, not both")
    return options


def show_list(known: dict[str, Experiment]) -> None:
    print("The experiments (run one with: python -m examples.explained NAME):\n")
    for e in known.values():
        print(f"{e.claim:3}  {e.name}\n     {e.title}")


def show(report: Report, seconds: float, picture: Path) -> None:
    for paragraph in report.experiment.paragraphs:
        print(textwrap.fill(paragraph, 110))
    print(f"\n{report.table()}\n\nVerdict: {report.verdict}. {report.by_how_much}")
    print(f"{seconds:.1f} s; picture: {picture}\n", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run it; return the exit status: 1 if an experiment failed to run, 2 for bad options."""
    options = parse(argv)
    known = experiments()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"error: no experiment {', '.join(unknown)}; without arguments all are listed", file=sys.stderr)
        return 2
    if not options.names and not options.all:
        show_list(known)
        return 0
    try:
        from .report import draw, page

        out = options.out or Path("runs/explained")
        out.mkdir(parents=True, exist_ok=True)
        import matplotlib  # noqa: F401
    except OSError as error:
        print(f"error: {out}: {error.strerror}", file=sys.stderr)
        return 1
    except ImportError:
        print("error: the pictures need matplotlib: pip install 'tinygrad_tf[train]'", file=sys.stderr)
        return 1
    size = Size.FULL if options.full else Size.QUICK if options.quick else Size.NORMAL
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    reports: list[tuple[Report, Path]] = []
    failed: dict[str, str] = {}
    for name, experiment in known.items():
        if not options.all and name not in options.names:
            continue
        print(f"=== {experiment.claim}. {experiment.title}  [{name}]", flush=True)
        start = time.perf_counter()
        try:
            report = experiment.measure(seeds, size)
            picture = out / f"{name}.png"
            draw(report, picture)
        except Exception:
            failed[name] = traceback.format_exc()
            print(f"{failed[name]}\nFAILED TO RUN: {name}\n", file=sys.stderr, flush=True)
            continue
        reports.append((report, picture))
        show(report, time.perf_counter() - start, picture)
    print("Summary:")
    for report, _ in reports:
        print(f"  {report.verdict:14} {report.experiment.claim:3}. {report.experiment.name}")
    for name in failed:
        print(f"  failed to run       {name}")
    if options.out is not None:
        about = f"Seeds {seeds.start} to {seeds.stop - 1}, size {size.name.lower()}. A check is met when every seed meets it."
        (out / "index.html").write_text(page(reports, failed, about), encoding="utf-8")
        print(f"The page: {out / 'index.html'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
