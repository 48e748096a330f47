"""Validates requests and streams of Anthropic's Messages with the types of its SDK.

Reads `{"requests": [body, ...], "streams": [[event, ...], ...]}` from standard input and prints
what is wrong, a line each.
"""

import json
import sys

from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError

KNOWN = set(MessageCreateParamsStreaming.__annotations__)


def check(adapter, value):
    """Print why a value is not valid."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        print(json.dumps(value)[:200], str(error)[:500].replace("\n", " "))


given = json.load(sys.stdin)
for body in given["requests"]:
    check(TypeAdapter(MessageCreateParamsStreaming), body)
    if unknown := body.keys() - KNOWN:
        print("unknown fields:", sorted(unknown))
for event in (each for stream in given["streams"] for each in stream):
    check(TypeAdapter(RawMessageStreamEvent), event)
