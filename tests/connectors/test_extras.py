"""A client library is needed by the provider that uses it, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tenure.connectors.destination import Destination
from tenure.connectors.http import HttpProvider
from tenure.connectors.nats import JetStream
from tenure.connectors.provider import Provider
from tenure.connectors.rabbitmq import RabbitMQ
from tenure.connectors.redis import RedisStreams
from tenure.connectors.signature import new_secret
from tenure.connectors.smtp import SmtpProvider
from tenure.connectors.webhook import Webhook
from tenure.errors import Invalid

SECRET = new_secret()


def webhook() -> Webhook:
    return Webhook("out", "https://shop.example/hooks", secret=SECRET)


CASES = [
    ("httpx", "tenure[http]", lambda: HttpProvider("shop", "https://shop.example/effects")),
    ("aiosmtplib", "tenure[smtp]", lambda: SmtpProvider("mailer", "mail.example", 25)),
    ("httpx", "tenure[webhook]", webhook),
    ("standardwebhooks.webhooks", "tenure[webhook]", webhook),
    ("cloudevents.core.v1.event", "tenure[webhook]", webhook),
    ("nats", "tenure[nats]", lambda: JetStream("out", "nats://shop.example", "shop")),
    ("cloudevents.core.v1.event", "tenure[nats]", lambda: JetStream("out", "nats://shop.example", "shop")),
    ("aio_pika", "tenure[rabbitmq]", lambda: RabbitMQ("out", "amqp://shop.example", "shop")),
    ("cloudevents.core.v1.event", "tenure[rabbitmq]", lambda: RabbitMQ("out", "amqp://shop.example", "shop")),
    ("redis.asyncio", "tenure[redis]", lambda: RedisStreams("out", "redis://shop.example", "shop")),
    ("cloudevents.core.v1.event", "tenure[redis]", lambda: RedisStreams("out", "redis://shop.example", "shop")),
]


@pytest.mark.parametrize("library, extra, make", CASES)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    library: str, extra: str, make: Callable[[], Provider | Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, library, None)
        with pytest.raises(Invalid, match=rf"pip install '{extra[:6]}\[{extra[7:-1]}\]'") as refused:
            make()
        assert refused.value.code == "MISSING_EXTRA"
    assert isinstance(make(), Provider | Destination)


def test_importing_the_connectors_imports_no_client_library() -> None:
    program = (
        "import sys; import tenure.connectors.provider, tenure.connectors.http, tenure.connectors.smtp,"
        "tenure.connectors.simulator, tenure.connectors.webhook, tenure.connectors.nats, tenure.connectors.rabbitmq,"
        "tenure.connectors.redis, tenure.testing;"
        "clients = {'httpx', 'aiosmtplib', 'cloudevents', 'standardwebhooks', 'nats', 'aio_pika', 'redis'};"
        "print(sorted(clients & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
