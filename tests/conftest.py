"""What every test may ask for: a real PostgreSQL, fresh databases on it, and a run that repeats."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import brokers
from tests.support.postgres import Databases, Server, attach, start_server

# A change is judged by the same examples every time; the nightly run looks for new ones and prints how to repeat them.
# Deadlines are off: two busy cores say nothing about the code.
settings.register_profile("change", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "nightly",
    max_examples=1000,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("TENURE_HYPOTHESIS", "change"))

# A shell without job control starts what runs in the background with SIGINT and SIGQUIT ignored, nohup does so with
# SIGHUP, and children inherit that: tests that press keys or hang up would do so in vain. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# A developer's own settings must not reach the tests.
for _name in [name for name in os.environ if name.startswith("TENURE_")]:
    if _name not in {"TENURE_TEST_POSTGRES", "TENURE_HYPOTHESIS", "TENURE_CI"}:
        del os.environ[_name]


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """Give the administrator's URL of the run's PostgreSQL; without one the tests that ask for it fail."""
    base = tmp_path_factory.getbasetemp()
    # The processes of a parallel run have folders side by side.
    meeting = (base if worker_id == "master" else base.parent) / "postgres"
    with attach(Path(meeting)) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_databases(postgres_url: str) -> Iterator[Databases]:
    """Give the maker of databases, for tests that need several or prepare their own template."""
    databases = Databases(postgres_url)
    try:
        yield databases
    finally:
        databases.close()


@pytest.fixture
def postgres_database(postgres_databases: Databases) -> Iterator[str]:
    """Give the URL of a fresh, empty database; it is dropped after the test."""
    url = postgres_databases.create()
    try:
        yield url
    finally:
        postgres_databases.drop(url)


@pytest.fixture
def postgres_server() -> Iterator[Server]:
    """Give a server of the test's own, which it may stop, kill and start again."""
    with start_server() as server:
        yield server


@pytest.fixture
def nats_server() -> Iterator[brokers.NatsServer]:
    """Give a NATS server of the test's own, which it may stop, kill, pause and start again."""
    with brokers.or_skip(brokers.NatsServer) as server:
        yield server


@pytest.fixture
def redis_server() -> Iterator[brokers.RedisServer]:
    """Give a Redis of the test's own, which it may stop, kill, pause and start again."""
    with brokers.or_skip(brokers.RedisServer) as server:
        yield server


@pytest.fixture
def rabbit_server() -> Iterator[brokers.RabbitServer]:
    """Give a RabbitMQ of the test's own; it takes seconds to start, so most tests share `rabbit_url`."""
    with brokers.or_skip(brokers.RabbitServer) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_url(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """Give the URL of the run's RabbitMQ; names of queues and exchanges are for each test to choose."""
    brokers.or_skip(brokers.RabbitServer.find)
    base = tmp_path_factory.getbasetemp()
    meeting = (base if worker_id == "master" else base.parent) / "rabbitmq"
    with brokers.attach(Path(meeting)) as url:
        yield url
