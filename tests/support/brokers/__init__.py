"""
Real brokers for the tests: nats-server, redis-server, rabbitmq-server, each in a temporary folder on a free port.

They are the machine's own programs; on Debian and Ubuntu the packages are called like them. As root they run as an
unprivileged user, listen on 127.0.0.1 only, and end when the process that started them ends, however it ends.
"""

from tests.support.brokers.daemon import Daemon, NoServer, NotInstalled
from tests.support.brokers.missing import or_skip
from tests.support.brokers.nats import NatsServer
from tests.support.brokers.rabbitmq import RabbitServer
from tests.support.brokers.redis import RedisServer
from tests.support.brokers.shared import attach

__all__ = ["Daemon", "NatsServer", "NoServer", "NotInstalled", "RabbitServer", "RedisServer", "attach", "or_skip"]
