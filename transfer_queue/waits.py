"""A report of who waits for what, as text for a person: the verdict first, then every stage and member with since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transfer_queue.messages import GroupWait, LeaseWait, MemberWait, StageWait, StallReport, TopicWait

LEASES = 4  # of a stage
GOING_ON_S = 1.0  # shorter pauses are part of the work, and nobody is to be asked about them


def render(report: StallReport) -> str:
    """Several lines. Ages are seconds before the report."""
    limit = "more than" if report.idle_s >= report.stall_s else "at most"
    lines = [f"no progress for {report.idle_s:.1f} s ({limit} the {report.stall_s:g} s that a run may stand still)"]
    lines.append("it goes on" if report.idle_s < GOING_ON_S else f"whose move: {report.verdict}")
    for topic in report.topics:
        lines += _topic(topic)
    lines.append("members")
    lines += table([_member(member) for member in report.members])
    return one_a_line(lines)


def one_a_line(lines: Iterable[str]) -> str:
    """Names and reasons are other people's words: none of them makes a line of its own."""
    return "\n".join(" ".join(line.splitlines()) for line in lines)


def _topic(topic: TopicWait) -> Iterator[str]:
    published = "none published" if topic.published is None else f"{topic.published} published"
    committed = "never" if topic.committed_s is None else f"{topic.committed_s:.1f} s ago"
    yield f"topic {topic.topic}: version {topic.version} (committed {committed}), {published}"
    yield "  groups     " + (", ".join(f"{state} {count}" for state, count in sorted(topic.ledger.items())) or "none")
    yield f"  oldest     {_group(topic.oldest)}"
    bound = f"bound by {topic.admission.bound}" if topic.admission.bound else "a prompt may be handed out"
    yield f"  admission  {topic.admission.permits} permits free, {topic.admission.prompts} prompts wait, {bound}"
    yield "  stages"
    yield from (f"  {line}" for line in table([_stage(stage) for stage in topic.stages]))


def _group(group: GroupWait | None) -> str:
    if group is None:
        return "no group is open"
    owners = f" (owed by {', '.join(group.owners)})" if group.owners else ""
    return f"group {group.gid}, version {group.version}, {group.state} since {group.since_s:.1f} s, waits for {group.waits_for}{owners}"


def _stage(stage: StageWait) -> list[str]:
    last = "no work yet" if stage.progress_s is None else f"last work {stage.progress_s:.1f} s ago"
    waiting = ", ".join(f"{member} waits {age:.1f} s" for member, age in stage.waiting.items())
    gone = ", ".join(f"{member} ended {age:.1f} s ago" for member, age in stage.gone.items())
    nobody = "" if stage.members or stage.gone else "nobody serves it"
    leases = ", ".join(_lease(lease) for lease in stage.leases[:LEASES])
    more = f", … {len(stage.leases) - LEASES} more" if len(stage.leases) > LEASES else ""
    return [stage.stage, f"{stage.ready_rows} ready", last, "; ".join(part for part in (leases + more, waiting, gone, nobody) if part)]


def _lease(lease: LeaseWait) -> str:
    had = "lost" if lease.lapsed else "has"
    return f"{lease.member} {had} {lease.rows} rows of groups {lease.gids} for {lease.age_s:.1f} s"


def _member(member: MemberWait) -> list[str]:
    spent = f"{member.activity} for {member.activity_s:.1f} s" if member.activity else ""
    doing = f"now: {member.doing}" if member.doing else ""
    duty = "" if member.duty is None else f"duty {member.duty} for {member.duty_s:.1f} s"
    loaded = ", ".join(f"{model} {version}" for model, version in member.loaded.items())
    waits = ", ".join(f"{what} for {age:.1f} s" for what, age in member.waits.items())
    facts = [spent, doing, duty, f"loaded {loaded}" if loaded else "", f"waits: {waits}" if waits else ""]
    return [member.member, member.role, f"heard {member.heard_s:.1f} s ago", "; ".join(fact for fact in facts if fact)]


def table(rows: list[list[str]]) -> Iterator[str]:
    """Lines of cells, columns as wide as their widest entry, but for the last."""
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]) if rows else 0)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
