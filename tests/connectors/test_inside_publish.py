"""The two providers that leave the process refuse to do so inside a publish block, whoever calls them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.connectors.http import HttpProvider
from tenure.errors import IllegalMove
from tenure.guard import guard
from tenure.rules.outcome import Accepted, Succeeded
from tests.connectors.mail import KEY, MAIL, mail_server, mailer
from tests.connectors.servers import RawServer, answering, response

Ask = Callable[[], Awaitable[Any]]


def asked(ask: Ask) -> Any:
    async def body() -> Any:
        return await ask()

    return asyncio.run(body())


def refused(ask: Ask) -> None:
    """Refused by the code that stands in the block, by a task it starts, and by a loop it starts."""
    with guard(object()):
        with pytest.raises(IllegalMove) as caught:
            asked(ask)
        assert caught.value.code == "INSIDE_PUBLISH"

    async def in_a_task() -> None:
        with guard(object()):
            task = asyncio.ensure_future(ask())
        # The task was made inside and runs after the block: nothing is locked any more.
        await task

    async def in_a_task_meanwhile() -> None:
        with guard(object()):
            await asyncio.ensure_future(ask())

    with pytest.raises(IllegalMove):
        asyncio.run(in_a_task_meanwhile())
    asyncio.run(in_a_task())


def test_a_request_is_refused_inside_and_made_outside() -> None:
    with RawServer(answering(response(200, b'{"id": 1}'))) as server:
        provider = HttpProvider("shop", server.url, lookup_url=server.url + "/{operation_key}", trust_env=False)
        with guard(object()), pytest.raises(IllegalMove, match="'shop' was called inside a publish block"):
            asked(lambda: provider.send({}, KEY))
        with guard(object()), pytest.raises(IllegalMove):
            asked(lambda: provider.lookup(KEY))
        assert server.connections == 0
        assert isinstance(asked(lambda: provider.send({}, KEY)), Succeeded)
        assert isinstance(asked(lambda: provider.lookup(KEY)), Accepted)
        refused(lambda: provider.send({}, KEY))
        assert server.connections == 3


def test_a_mail_is_refused_inside_and_sent_outside() -> None:
    with mail_server() as box:
        provider = mailer(box.port)
        with guard(object()), pytest.raises(IllegalMove, match="inside a publish block"):
            asked(lambda: provider.send(MAIL, KEY))
        assert box.mails == []
        assert isinstance(asked(lambda: provider.send(MAIL, KEY)), Succeeded)
        refused(lambda: provider.send(MAIL, KEY))
        assert len(box.mails) == 2


def test_another_transaction_of_the_store_refuses_no_call() -> None:
    """An open transaction is the store's business; the promise about the outside is the publish's."""
    with RawServer(answering(response(200))) as server:
        provider = HttpProvider("shop", server.url, trust_env=False)
        with guard(object(), code="INSIDE_TRANSACTION", text="of the store"):
            assert isinstance(asked(lambda: provider.send({}, KEY)), Succeeded)


def test_a_thread_of_ones_own_is_not_seen() -> None:
    """As documented: a new thread begins without the block's context."""
    outcomes: list[Any] = []
    with RawServer(answering(response(200))) as server:
        provider = HttpProvider("shop", server.url, trust_env=False)
        with guard(object()):
            thread = threading.Thread(target=lambda: outcomes.append(asked(lambda: provider.send({}, KEY))))
            thread.start()
            thread.join(30)
    assert [type(one) for one in outcomes] == [Succeeded]
