"""What the source asks: put prompts, learn how many more are wanted, and close the topic with its count."""

from __future__ import annotations

from transfer_queue.controller import ending
from transfer_queue.controller.blocks import places_of
from transfer_queue.controller.errors import bad
from transfer_queue.controller.schema import MOST_ROWS
from transfer_queue.controller.store import MOST_GIDS
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import ClosePrompts, Demand, OkDemand, OkEmpty, OkPrompts, PutPrompts


def put_prompts(topic: TopicState, request: PutPrompts, last: bool) -> OkPrompts | None:
    """All new prompts of the put and the cursor, or nothing: it parks until they fit.

    A put that found no room in time stored nothing (`cursor` in the reply is below the request's): the same message may be sent again.
    """
    queue = topic.prompts
    for prompt in request.prompts:
        topic.schema.check_prompt(prompt.gid, prompt.columns)
        if not 0 <= prompt.gid < MOST_GIDS or (prompt.rows is not None and not 1 <= prompt.rows <= MOST_ROWS):
            raise bad(f"prompt {prompt.gid} with rows={prompt.rows}: gids count from 0 to 2^47, rows from 1 to {MOST_ROWS}; nothing was stored")
    topic.runtime.blocks.check(places_of(prompt.columns.values()) for prompt in request.prompts)
    new = queue.new(request.prompts)
    if len(new) > queue.most:
        raise bad(
            f"prompts: {len(new)} new ones in one put exceed the {queue.most} that ever fit, by prompts_bound={queue.bound} of topic {topic.name!r}: "
            "nothing was stored. Ask Demand how many may be put"
        )
    if topic.over or not queue.has_room(len(new)):
        return OkPrompts(accepted=0, cursor=queue.cursor) if topic.over or last else None
    queue.put(new, request.cursor)
    kept = set(map(id, new))
    topic.runtime.blocks.refuse(places_of(piece for prompt in request.prompts if id(prompt) not in kept for piece in prompt.columns.values()))
    if new:
        topic.progressed(topic.schema.source)
        topic.runtime.wake("pull", topic.name)
    return OkPrompts(accepted=len(new), cursor=max(queue.cursor, request.cursor))  # behind the request's only where nothing was stored


def demand(topic: TopicState, request: Demand, last: bool) -> OkDemand | None:
    wanted = 0 if topic.over else topic.prompts.wanted(topic.ledger.trained, topic.ledger.open)
    if not wanted and not topic.over and not last:
        return None
    return OkDemand(wanted=wanted, cursor=topic.prompts.cursor, done=topic.over)


def close_prompts(topic: TopicState, request: ClosePrompts) -> OkEmpty:
    known = topic.prompts.target
    if request.count < 1 or (known is not None and known != request.count):
        raise bad(
            f"count={request.count} of topic {topic.name!r}: a run trains at least 1 group and its count ({known}) is fixed once; it stays {known}"
        )
    if known is None:
        topic.prompts.target = request.count
        topic.runtime.emit("topic", topic=topic.name, reason="closed", data={"count": request.count})
        ending.finish_if_trained(topic)
        topic.runtime.wake("demand", topic.name)
        topic.wake_terminals()
    return OkEmpty()
