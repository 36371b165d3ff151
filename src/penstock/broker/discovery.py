# SPDX-License-Identifier: Apache-2.0
"""Commands that find topics: PARTITIONED_METADATA and LOOKUP.

Where: the session's table of handlers leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, TopicNotFound, WireCode
from penstock.core.names import TopicName
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.session import Handler, Session


def _on_partitioned_metadata(session: Session, body: codec.CommandPartitionedTopicMetadata) -> None:
    try:
        name = TopicName.parse(body.topic)
        session.broker.check_lookup(name)
        if not body.metadata_auto_creation_enabled and not session.broker.topics.exists(name):
            raise TopicNotFound(str(name))
    except PenstockError as error:
        session.reply(codec.partitioned_metadata_failed(body.request_id, error.wire_code, str(error)))
        return
    session.reply(codec.partitioned_metadata(body.request_id, 0))


def _on_lookup(session: Session, body: codec.CommandLookupTopic) -> None:
    try:
        session.broker.check_lookup(TopicName.parse(body.topic))
    except PenstockError as error:
        session.reply(codec.lookup_failed(body.request_id, error.wire_code, str(error)))
        return
    urls = session.broker.service_urls
    session.reply(codec.lookup_connect(body.request_id, urls.plain, urls.tls))


def _on_unserved(session: Session, body: codec.CommandGetTopicsOfNamespace) -> None:
    text = f"{type(body).__name__} is not served by this broker"
    session.reply(codec.error(body.request_id, WireCode.NOT_ALLOWED_ERROR, text))


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.PARTITIONED_METADATA: _on_partitioned_metadata,
    codec.BaseCommand.LOOKUP: _on_lookup,
    codec.BaseCommand.GET_TOPICS_OF_NAMESPACE: _on_unserved,
    codec.BaseCommand.WATCH_TOPIC_LIST: _on_unserved,
    codec.BaseCommand.WATCH_TOPIC_LIST_CLOSE: _on_unserved,
}
