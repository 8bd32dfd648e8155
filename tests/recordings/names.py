"""The names that users write into scripts, alerts and manifests, and clients into messages."""

from __future__ import annotations

import argparse
import inspect
import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from prometheus_client import CollectorRegistry

import client
import tokenfeed
from client import (
    Credentials,
    Mixture,
    NumpyBatches,
    NumpyRichBatch,
    RemoteBatches,
    RichBatch,
    Timeouts,
    validation_feeds,
)
from tests.conftest import ROOT
from tokenfeed.client import metrics
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.commands.completion import _commands_of, complete_parser
from tokenfeed.errors import Option
from tokenfeed.sampling import orders
from tokenfeed.server.storage import option_names
from tokenfeed.tools.doctor.findings import EXIT_CODES
from tokenfeed.tools.top.run import TOKEN_VARIABLE
from tokenfeed.v1 import tokenfeed_pb2

Names = dict[str, Any]


def names() -> Names:
    """Return all names, each kind sorted, or by what they belong to."""
    return {
        "commands": {name: _options(each) for name, each in commands().items()},
        "options of datasets": sorted(
            each.name for each in vars(option_names).values() if isinstance(each, Option)
        ),
        "environment": environment(),
        "exit codes of doctor": EXIT_CODES,
        "metrics of a server": server_metrics(),
        "metrics of a feed": _feed_metrics(),
        "tokenfeed": sorted(tokenfeed.__all__),
        "client": sorted(client.__all__),
        "arguments": {
            made.__name__: [*inspect.signature(made).parameters]
            for made in (
                *(RemoteBatches, NumpyBatches, validation_feeds),
                *(Mixture, Timeouts, Credentials),
            )
        },
        "attributes": {
            made.__name__: sorted(name for name in dir(made) if not name.startswith("_"))
            for made in (RemoteBatches, NumpyBatches, RichBatch, NumpyRichBatch)
        },
        "orders": sorted(orders.ORDERS),
        "contract": _contract(),
    }


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    return _commands_of(complete_parser())


def _options(parser: argparse.ArgumentParser) -> list[str]:
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    return sorted(name for each in shown for name in each.option_strings)


def environment() -> list[str]:
    """Return our own variables, which credentials come from."""
    read: set[str] = set()

    class Environment(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return default

    with_environment(environment=Environment())
    with_environment(environment=Environment(), token=TOKEN_VARIABLE)
    return sorted(read)


def server_metrics() -> dict[str, str]:
    """Return names and types of docs/observability.md, which tests/deploy compares with what is
    exported.
    """
    page = (ROOT / "docs" / "observability.md").read_text()
    return dict(sorted(re.findall(r"^\| `(tokenfeed_\w+)` \| (\w+) \|", page, re.MULTILINE)))


def _feed_metrics() -> dict[str, str]:
    registry = CollectorRegistry()
    with NumpyBatches("file:none.bin", 1, 1) as feed:
        metrics.register(feed, registry)
        return {each.name: each.type for each in registry.collect()}


def _contract() -> dict[str, dict[str, str]]:
    """Return the fields of each message, with number and type, and the rpcs of each service."""
    types = {
        number: name.removeprefix("TYPE_").lower()
        for name, number in vars(FieldDescriptor).items()
        if name.startswith("TYPE_")
    }
    messages = {
        name: {field.name: f"{field.number} {types[field.type]}" for field in message.fields}
        for name, message in tokenfeed_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    services = {
        name: {rpc.name: f"{rpc.input_type.name} {rpc.output_type.name}" for rpc in each.methods}
        for name, each in tokenfeed_pb2.DESCRIPTOR.services_by_name.items()
    }
    return messages | services
