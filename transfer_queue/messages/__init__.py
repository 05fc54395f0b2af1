"""Every record that crosses a socket of the queue, in one place.

A client talks to the controller with one `Request` and gets exactly one reply to it (an `Ok*` record or `ErrorReply`), possibly later: requests that
cannot be met yet are *parked* by the controller until they can, until `wait_s` is over (the reply is then empty), until a `Cancel` names them, or
until their member's incarnation ends (the reply is then the error `stale_incarnation`).
Shards carry tensor bytes and are reached by the client itself: no caller ever names a shard or a row index.

Units: seconds (`*_s`), bytes (`*_bytes`), groups unless a field says rows. Versions count committed global batches of the topic's model; 0 is a
value.
"""

from __future__ import annotations

from transfer_queue.messages.base import PROTOCOL, Cancel, ErrorReply, Kind, OkEmpty, Policy, Record, Reply, Request, RunState, State, Unit
from transfer_queue.messages.consuming import Commit, OkCommitted, OkTaken, OkWritten, Published, Release, Renew, Take, WriteBack
from transfer_queue.messages.keyed import (
    Cells,
    CellType,
    KeyedClear,
    KeyedEndTask,
    KeyedList,
    KeyedLook,
    KeyedPut,
    KeyedTake,
    Listed,
    OkCleared,
    OkKeyed,
    OkKeyedTaken,
    OkListed,
    OkLooked,
)
from transfer_queue.messages.members import (
    Directive,
    Drain,
    Failed,
    Leave,
    MemberDead,
    OkDirective,
    OkRegistered,
    OkRoster,
    Register,
    Report,
    Roster,
    ShardInfo,
    Stop,
    Watch,
)
from transfer_queue.messages.places import ModelVersion, Slice
from transfer_queue.messages.producing import (
    ClosePrompts,
    Demand,
    DropGroups,
    GroupLease,
    HandBack,
    HandedBack,
    OkDemand,
    OkHandedBack,
    OkProgress,
    OkPrompts,
    OkPulled,
    OkPut,
    OkStored,
    Progress,
    ProgressItem,
    PromptPut,
    Pull,
    Put,
    PutPrompts,
    PutRows,
)
from transfer_queue.messages.replaying import Draw, Replay, Replayed, ReplayStatus
from transfer_queue.messages.rows import NOWHERE, PutBatch, RowPut, RowRef, Rows, packed, packed_places, places, slices_of, unpacked, wrong_lengths
from transfer_queue.messages.saving import PIECE_BYTES, EndSave, Load, LoadPart, OkImage, OkSave, ReadImage, Save
from transfer_queue.messages.schema import Column, Consumer, Sampler, TopicSpec, Window
from transfer_queue.messages.stall import AdmissionWait, Blame, GroupWait, LeaseWait, MemberWait, StageWait, StallReport, TopicWait
from transfer_queue.messages.status import ConsumerStatus, Event, OkStatus, PartitionStatus, Status, StatusRecord, TopicStatus, TrafficStatus

AnyRequest = (
    Register
    | Roster
    | Watch
    | Failed
    | Leave
    | MemberDead
    | PutPrompts
    | Demand
    | ClosePrompts
    | Pull
    | Put
    | Progress
    | HandBack
    | PutRows
    | DropGroups
    | Take
    | WriteBack
    | Release
    | Renew
    | Commit
    | Published
    | KeyedPut
    | KeyedLook
    | KeyedList
    | KeyedClear
    | KeyedTake
    | KeyedEndTask
    | Report
    | Cancel
    | Drain
    | Save
    | ReadImage
    | EndSave
    | LoadPart
    | Load
    | Stop
    | Status
)
AnyReply = (
    OkEmpty
    | ErrorReply
    | OkRegistered
    | OkRoster
    | OkDirective
    | OkPrompts
    | OkDemand
    | OkPulled
    | OkProgress
    | OkHandedBack
    | OkPut
    | OkStored
    | OkTaken
    | OkWritten
    | OkCommitted
    | OkKeyed
    | OkLooked
    | OkListed
    | OkCleared
    | OkKeyedTaken
    | OkSave
    | OkImage
    | OkStatus
)

__all__ = [
    "NOWHERE",
    "PIECE_BYTES",
    "PROTOCOL",
    "AdmissionWait",
    "AnyReply",
    "AnyRequest",
    "Blame",
    "Cancel",
    "CellType",
    "Cells",
    "ClosePrompts",
    "Column",
    "Commit",
    "Consumer",
    "ConsumerStatus",
    "Demand",
    "Directive",
    "Drain",
    "Draw",
    "DropGroups",
    "EndSave",
    "ErrorReply",
    "Event",
    "Failed",
    "GroupLease",
    "GroupWait",
    "HandBack",
    "HandedBack",
    "KeyedClear",
    "KeyedEndTask",
    "KeyedList",
    "KeyedLook",
    "KeyedPut",
    "KeyedTake",
    "Kind",
    "LeaseWait",
    "Leave",
    "Listed",
    "Load",
    "LoadPart",
    "MemberDead",
    "MemberWait",
    "ModelVersion",
    "OkCleared",
    "OkCommitted",
    "OkDemand",
    "OkDirective",
    "OkEmpty",
    "OkHandedBack",
    "OkImage",
    "OkKeyed",
    "OkKeyedTaken",
    "OkListed",
    "OkLooked",
    "OkProgress",
    "OkPrompts",
    "OkPulled",
    "OkPut",
    "OkRegistered",
    "OkRoster",
    "OkSave",
    "OkStatus",
    "OkStored",
    "OkTaken",
    "OkWritten",
    "PartitionStatus",
    "Policy",
    "Progress",
    "ProgressItem",
    "PromptPut",
    "Published",
    "Pull",
    "Put",
    "PutBatch",
    "PutPrompts",
    "PutRows",
    "ReadImage",
    "Record",
    "Register",
    "Release",
    "Renew",
    "Replay",
    "ReplayStatus",
    "Replayed",
    "Reply",
    "Report",
    "Request",
    "Roster",
    "RowPut",
    "RowRef",
    "Rows",
    "RunState",
    "Sampler",
    "Save",
    "ShardInfo",
    "Slice",
    "StageWait",
    "StallReport",
    "State",
    "Status",
    "StatusRecord",
    "Stop",
    "Take",
    "TopicSpec",
    "TopicStatus",
    "TopicWait",
    "TrafficStatus",
    "Unit",
    "Watch",
    "Window",
    "WriteBack",
    "packed",
    "packed_places",
    "places",
    "slices_of",
    "unpacked",
    "wrong_lengths",
]
