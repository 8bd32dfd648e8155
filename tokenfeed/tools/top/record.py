"""A status as values for JSON, under the names of the contract."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from tokenfeed.commands.status.attention import judge
from tokenfeed.v1 import status_pb2 as pb


def record(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return a status, and what is made of it: "attention", and "state" and "run" of streams, which
    are sorted as they are shown.
    """
    judgement = judge(status)
    streams = [
        {**_values(seen.status), "state": seen.state.name, "run": seen.run}
        for seen in judgement.streams
    ]
    points = [{"level": point.level.name.lower(), "text": point.text} for point in judgement.points]
    return {**_values(status), "streams": streams, "attention": points}


def _values(message: Message) -> dict[str, Any]:
    """Return the fields of a message: bytes as hexadecimal digits, and None for one that is not
    set and need not be.
    """
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        elif field.type == field.TYPE_BYTES:
            value = value.hex()
        elif field.message_type is not None:
            value = [_values(each) for each in value]
        elif not isinstance(value, (bool, int, float, str)):
            value = list(value)
        found[field.name] = value
    return found
