"""`/v1/stream`: text in pieces as a language model writes it, sound back while it is still being written.

docs/api.md describes the messages. One connection serves one conversation; a turn ends with `end` or `cancel`.
"""

from __future__ import annotations

import logging

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from webui.api.context import context_of
from webui.api.errors import ApiError, as_api_error
from webui.api.stream_session import Session
from webui.api.stream_wire import UNAUTHORISED, Wire

logger = logging.getLogger("cosyvoice.api")

router = APIRouter()


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket) -> None:
    """See the module."""
    try:
        context_of(websocket).access.check_site(websocket)
    except ApiError as error:
        logger.info("A WebSocket is refused: %s", error.message)
        await websocket.close(UNAUTHORISED)
        return
    await websocket.accept()
    wire = Wire(websocket)
    session = Session(websocket, wire, context_of(websocket))
    may_go_on = False
    try:
        await session.run()
    except WebSocketDisconnect as gone:
        may_go_on = gone.code not in _FAREWELLS
        logger.info("The listener has gone%s.", ", maybe to come again" if may_go_on else "")
    except ApiError as error:
        await wire.refuse(error)
    except Exception as error:
        await wire.refuse(as_api_error(error))
    finally:
        await session.close(may_go_on)
        wire.close()


_FAREWELLS = (1000, 1001)  # said by who has had enough, or whose page is being closed
