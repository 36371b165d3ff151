# SPDX-License-Identifier: Apache-2.0
"""Statistics as the admin port gives them, for `/openapi.json`: models made of the shapes in `broker.stats.shapes`.

The broker makes dicts, which go out as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import create_model

from penstock.admin.models import Model
from penstock.broker.stats import shapes


@cache
def _model(shape: Any) -> type[Model]:  # noqa: ANN401 -- a TypedDict
    hints = get_type_hints(shape).items()
    members: dict[str, Any] = {
        name: (_kind(hint), ...) if shapes.required(shape, name) else (_kind(hint) | None, None) for name, hint in hints
    }
    return create_model(shape.__name__, __base__=Model, __doc__=shape.__doc__, **members)


def _kind(hint: Any) -> Any:  # noqa: ANN401
    """A type, with models in place of shapes."""
    if is_typeddict(hint):
        return _model(hint)
    inner = tuple(map(_kind, get_args(hint)))
    return get_origin(hint)[inner] if get_origin(hint) in {list, dict} else hint


TopicStats: Final = _model(shapes.TopicStats)
PartitionedTopicStats: Final = _model(shapes.PartitionedTopicStats)
InternalStats: Final = _model(shapes.InternalStats)
PartitionedInternalStats: Final = _model(shapes.PartitionedInternalStats)
InternalInfo: Final = _model(shapes.InternalInfo)
PartitionedInternalInfo: Final = _model(shapes.PartitionedInternalInfo)
BacklogAnalysis: Final = _model(shapes.BacklogAnalysis)
ListingMemories: Final = _model(shapes.ListingMemories)
MutedConnections: Final = _model(shapes.MutedConnections)
