"""Pictures, and the page that holds everything in one file."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from .frame import Report, mean_and_spread, number

COLOURS = {
    "holds": "#1a7f37",
    "holds in part": "#9a6700",
    "does not hold": "#b42318",
    "undecided": "#57606a",
    "failed": "#b42318",
}
STYLE = """
body { font: 16px/1.5 system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif; color: #1f2328;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3.5rem; border-top: 1px solid #d0d7de; padding-top: 1rem; }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0; }
th, td { border-bottom: 1px solid #d0d7de; padding: .3rem .7rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
.verdict { color: white; border-radius: 4px; padding: .1rem .6rem; white-space: nowrap; font-size: 15px; }
.scroll { overflow-x: auto; }
"""


def draw(report: Report, path: Path) -> None:
    """Save the experiment's picture as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings: Any = {
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 13,
        "lines.linewidth": 2,
        "legend.frameon": False,
        "axes.axisbelow": True,
    }
    with pyplot.rc_context(settings):
        figure = pyplot.figure(figsize=report.experiment.size, layout="constrained")
        try:
            report.experiment.draw(figure, report.results)
            figure.savefig(path, dpi=150)
        finally:
            pyplot.close(figure)


def badge(verdict: str) -> str:
    return f'<span class="verdict" style="background:{COLOURS[verdict]}">{verdict}</span>'


def page(reports: list[tuple[Report, Path]], failed: dict[str, str], about: str) -> str:
    """All claims with verdicts, tables and pictures, as one HTML text that needs no other file."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>The Transformer block, claim by claim</title>',
        f"<style>{STYLE}</style><h1>The Transformer block, claim by claim</h1><p>{html.escape(about)}</p>",
        "<table><tr><th>experiment</th><th>claim</th><th>verdict</th></tr>",
    ]
    for report, _ in reports:
        e = report.experiment
        link = f'<a href="#{e.name}">{html.escape(e.title)}</a>'
        parts.append(f"<tr><td>{link}</td><td>{e.claim}</td><td>{badge(report.verdict)}</td></tr>")
    for name in failed:
        parts.append(f"<tr><td>{html.escape(name)}</td><td></td><td>{badge('failed')}</td></tr>")
    parts.append("</table>")
    for report, picture in reports:
        e = report.experiment
        parts.append(f'<h2 id="{e.name}">{e.claim}. {html.escape(e.title)}</h2>')
        for paragraph in e.paragraphs:
            word, dot, rest = paragraph.partition(".")
            known = word in ("Claim", "Expected", "Control", "Note")
            text = f"<b>{word}.</b>{html.escape(rest)}" if known and dot else html.escape(paragraph)
            parts.append(f"<p>{text}</p>")
        parts.append(f"<p>{badge(report.verdict)} {html.escape(report.by_how_much)}</p>")
        runs = "".join(f"<th>run {i + 1}</th>" for i in range(len(report.results)))
        parts.append(
            f'<div class="scroll"><table><tr><th>measured</th><th>threshold</th>{runs}<th>mean ± spread</th><th></th></tr>'
        )
        for row in report.rows:
            mark = {True: "met", False: "<b>not met</b>", None: ""}[row.met]
            cells = [
                html.escape(row.what),
                html.escape(row.threshold),
                *map(number, row.values),
                mean_and_spread(row),
                mark,
            ]
            parts.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
        image = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'</table></div><img alt="{html.escape(e.title)}" src="data:image/png;base64,{image}">')
        parts.append(f"<p><code>python -m examples.explained {e.name}</code></p>")
    for name, error in failed.items():
        parts.append(f"<h2>{html.escape(name)}: failed to run</h2><pre>{html.escape(error)}</pre>")
    return "\n".join(parts) + "\n</html>\n"
