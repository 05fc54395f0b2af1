"""The parts of the page that need no drawing, as HTML. Every text of a run passes `html.escape`: a traceback may hold any markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from asyncflow.observe.report.data import Block, Ending, Figure, RoleShare, RunReport, Setting
from asyncflow.observe.report.headline import difference

ACTIVITIES = ("busy", "paused", "wait")
ABSENT = '<p class="absent">not recorded</p>'


def rows(cells: Iterable[Sequence[str]], head: Sequence[str] = (), kind: str = "") -> str:
    """A table of texts, escaped here. The first cell of a row is its header."""
    top = f"<thead><tr>{''.join(f'<th scope=col>{escape(cell)}</th>' for cell in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr><th scope=row>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>" for first, *rest in cells)
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def verdict(runs: Sequence[RunReport]) -> str:
    """The page's head: what each run was and how it went."""
    return "".join(
        f'<article class="verdict {run.verdict.tone} run{place}"><h1>{_swatch(place, runs)}{escape(run.name)}</h1>'
        f'<p class="outcome"><span class="pill">{escape(run.verdict.word)}</span> {escape(run.verdict.sentence)}</p>'
        f'<dl class="facts">{"".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in run.facts)}</dl></article>'
        for place, run in enumerate(runs)
    )


def trouble(runs: Sequence[RunReport]) -> str:
    """Traceback and stall report; "" where there are none."""
    parts = []
    for run in runs:
        for title, text in (("Traceback", run.verdict.traceback), ("Stall report", run.verdict.stall)):
            if text:
                parts.append(f'<section class="trouble"><h2>{title}{_of(run, runs)}</h2><pre>{escape(text)}</pre></section>')
    return "".join(parts)


def headline(runs: Sequence[RunReport]) -> str:
    """Cards of one run; a table with the difference of two."""
    if len(runs) == 1:
        cards = (
            f'<div class="card{" missing" if figure.value is None else ""}" title="{escape(figure.says)}"><span>{escape(figure.name)}</span>'
            f"<b>{escape(figure.shown)}</b></div>"
            for figure in runs[0].figures
        )
        return f'<div class="cards">{"".join(cards)}</div>'
    head = "".join(f"<th scope=col>{_swatch(place, runs)}{escape(run.name)}</th>" for place, run in enumerate(runs))
    body = "".join(_compared(*pair) for pair in zip(runs[0].figures, runs[1].figures, strict=True))
    top = f"<thead><tr><th></th>{head}<th scope=col>difference</th></tr></thead>"
    return f'<div class="scroll"><table class="compare">{top}<tbody>{body}</tbody></table></div>'


def _compared(first: Figure, second: Figure) -> str:
    change, tone = difference(first, second)
    return (
        f'<tr><th scope=row title="{escape(first.says)}">{escape(first.name)}</th><td>{escape(first.shown)}</td><td>{escape(second.shown)}</td>'
        f'<td class="{tone}">{escape(change)}</td></tr>'
    )


def shares(runs: Sequence[RunReport]) -> str:
    """Where each role's time went: one bar a role and run."""
    roles = dict.fromkeys(share.role for run in runs for share in run.shares)
    if not roles:
        return ABSENT
    lines = [
        _share(share, _swatch(place, runs), place)
        for role in roles
        for place, run in enumerate(runs)
        for share in run.shares
        if share.role == role
    ]
    key = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in ACTIVITIES)
    return f'<div class="shares">{"".join(lines)}</div><p class="key">{key}</p>'


def _share(share: RoleShare, swatch: str, place: int) -> str:
    parts = {"busy": share.busy, "paused": share.paused, "wait": share.wait}
    bar = "".join(f'<i class="{name}" style="width:{100 * part:.2f}%"></i>' for name, part in parts.items())
    said = ", ".join(f"{name} {part:.0%}" for name, part in parts.items() if part >= 0.005)
    return f'<div class="share run{place}"><span>{swatch}{escape(share.role)}</span><div class="bar" title="{said}">{bar}</div><em>{said}</em></div>'


def endings(runs: Sequence[RunReport]) -> str:
    """The ledger, with length and age of what ended."""
    head = ("state", "groups", "tokens a group", "age, versions")
    return "".join(f"<h3>Ledger{_of(run, runs)}</h3>{rows(map(_ending, run.endings), head) if run.endings else ABSENT}" for run in runs)


def _ending(ending: Ending) -> tuple[str, str, str, str]:
    tokens = "" if ending.tokens_mean is None else f"{ending.tokens_mean:,.1f}"
    age = "" if ending.age_mean is None else f"{ending.age_mean:.2f}"
    return ending.state.replace("dropped:", "dropped: "), f"{ending.groups:,}", tokens, age


def advice(runs: Sequence[RunReport]) -> str:
    """One column a block, or one a run; "" where there is no advice."""
    columns = [[block] for block in runs[0].advice] if len(runs) == 1 else [run.advice for run in runs]
    owners = [runs[0]] * len(columns) if len(runs) == 1 else runs
    parts = (
        f"<div>{''.join(_block(block, _of(run, runs)) for block in blocks)}</div>" for run, blocks in zip(owners, columns, strict=True) if blocks
    )
    return f'<div class="advice">{"".join(parts)}</div>' if any(columns) else ""


def _block(block: Block, of: str) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in block.notes)
    return (
        f'<h3>{escape(block.title)}{of}</h3><p class="says">{escape(block.says)}</p>'
        + (rows(block.rows, block.head) if block.rows else "")
        + (f"<ul class=says>{notes}</ul>" if notes else "")
    )


def settings(runs: Sequence[RunReport]) -> str:
    """What is not at its default, or differs between the runs; the rest folded away."""
    if not any(run.settings for run in runs):
        return ABSENT
    found = [{setting.key: setting for setting in run.settings} for run in runs]
    keys = list(dict.fromkeys(key for run in runs for key in (setting.key for setting in run.settings)))
    first = [_setting(key, found) for key in keys if _stands_out(key, found)]
    other = [_setting(key, found) for key in keys if not _stands_out(key, found)]
    head = ("setting", *(run.name for run in runs), "default") if len(runs) > 1 else ("setting", "value", "default")
    title = "differ between the runs" if len(runs) > 1 else "are not at their default"
    folded = f"<details><summary>The other {len(other)} settings</summary>{rows(other, head, 'settings')}</details>" if other else ""
    return f"<p>{len(first)} settings {title}.</p>{rows(first, head, 'settings marked') if first else ''}{folded}"


def _stands_out(key: str, found: list[dict[str, Setting]]) -> bool:
    values = {run[key].value if key in run else None for run in found}
    if len(found) > 1:
        return len(values) > 1 and not key.startswith("run.dir")
    return found[0][key].value != found[0][key].default


def _setting(key: str, found: list[dict[str, Setting]]) -> tuple[str, ...]:
    default = next((run[key].default for run in found if key in run), None)
    values = [run[key].value if key in run else "" for run in found]
    return key, *values, default if default is not None else ""


def environment(runs: Sequence[RunReport]) -> str:
    """One column a run."""
    found = [dict(run.environment) for run in runs]
    keys = dict.fromkeys(key for run in found for key in run)
    if not keys:
        return ABSENT
    head = ("", *(run.name for run in runs)) if len(runs) > 1 else ()
    return rows(((key, *(run.get(key, "") for run in found)) for key in keys), head)


def notes(runs: Sequence[RunReport]) -> str:
    """What the reader must know about the files; "" where they were whole."""
    said = [f"<li>{escape(note)}{_of(run, runs)}</li>" for run in runs for note in run.notes]
    return f'<aside class="notes"><h2>About the files</h2><ul>{"".join(said)}</ul></aside>' if said else ""


def _of(run: RunReport, runs: Sequence[RunReport]) -> str:
    return f" · {escape(run.name)}" if len(runs) > 1 else ""


def _swatch(place: int, runs: Sequence[RunReport]) -> str:
    return f'<i class="swatch run{place}"></i>' if len(runs) > 1 else ""
