"""Read a store's URL: what libpq gets, what is ours, and what may be shown to people."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.errors import Invalid, echo

_SCHEMES = frozenset({"postgresql", "postgres"})
_OURS = "tenure_"
_ON = frozenset({"on", "true", "yes", "1"})
_OFF = frozenset({"off", "false", "no", "0"})

# Given to libpq where the URL does not say otherwise. A dead host is noticed within seconds, not after minutes.
_DEFAULTS: dict[str, str] = {
    "connect_timeout": "5",
    "fallback_application_name": "tenure",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
# Our values are packed as UTF-8.
_FIXED: dict[str, str] = {"client_encoding": "UTF8"}


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """
    Where a database is.

    Attributes:
        url: Without any secret; the only form that may be shown or logged.
        conninfo: For libpq; may hold a password.
        prepare: False where a transaction pooler stands between, so that nothing may be prepared by name.
        listen: Where to listen for notifications (conninfo), or None.
        pool_size: Connections at most, or None where the URL does not say.
    """

    url: str
    conninfo: str
    prepare: bool
    listen: str | None
    pool_size: int | None

    def __repr__(self) -> str:
        return f"<address {self.url}>"

    def scrub(self, text: str) -> str:
        """Take the password out of a text of libpq's or the server's, should one ever stand there."""
        for conninfo in (self.conninfo, self.listen):
            for name in ("password", "sslpassword"):
                secret = conninfo_to_dict(conninfo).get(name) if conninfo else None
                if secret:
                    text = text.replace(str(secret), "***")
        return text


def read_address(
    url: str,
    *,
    prepare: bool | None = None,
    listen: bool | str | None = None,
    pool_size: int | None = None,
) -> Address:
    """
    Take a URL apart; arguments that are given win over the URL's own parameters.

    Of the parameters behind the `?`, those that begin with `tenure_` are ours (tenure_prepare=off, tenure_listen=off or
    another URL, tenure_pool_size=4); all others are libpq's.

    Raises:
        Invalid: BAD_STORE_URL; the text never repeats the URL.
    """
    # By hand: urllib reads + as a space and drops empty hosts, libpq does neither.
    base, _, query = url.partition("?")
    if base.partition("://")[0] not in _SCHEMES:
        raise Invalid("a PostgreSQL store's URL begins with postgresql://", code="BAD_STORE_URL")
    ours: dict[str, str] = {}
    theirs: list[str] = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if unquote(name).startswith(_OURS):
            ours[unquote(name).removeprefix(_OURS)] = unquote(value)
        else:
            theirs.append(part)
    unknown = ours.keys() - {"prepare", "listen", "pool_size"}
    if unknown:
        names = ", ".join(sorted(_OURS + name for name in unknown))
        raise Invalid(f"the store URL has unknown parameters: {echo(names)}", code="BAD_STORE_URL")
    conninfo = _conninfo("?".join(filter(None, [base, "&".join(theirs)])))
    if prepare is None:
        prepare = _switch("prepare", ours.get("prepare", "on"))
    if pool_size is None and "pool_size" in ours:
        pool_size = _count("pool_size", ours["pool_size"])
    if listen is None:
        given = ours.get("listen", "on")
        listen = given if "://" in given else _switch("listen", given)
    if isinstance(listen, str):
        listen_at: str | None = _conninfo(listen)
    else:
        listen_at = conninfo if listen else None
    return Address(_shown(conninfo), conninfo, prepare, listen_at, pool_size)


def _conninfo(url: str) -> str:
    try:
        given = conninfo_to_dict(url)
        return make_conninfo("", **{**_DEFAULTS, **given, **_FIXED})
    except ProgrammingError:
        # libpq quotes the part that it could not read, which may be the password.
        raise Invalid(
            "the store URL cannot be read; write postgresql://USER@HOST:PORT/DATABASE and percent-encode special "
            "characters in user and password",
            code="BAD_STORE_URL",
        ) from None


def _switch(name: str, value: str) -> bool:
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise Invalid(f"the store URL's {_OURS}{name} must be on or off", code="BAD_STORE_URL")


def _count(name: str, value: str) -> int:
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise Invalid(f"the store URL's {_OURS}{name} must be a whole number from 1", code="BAD_STORE_URL")


def _shown(conninfo: str) -> str:
    # Built from the parts that are no secret instead of cutting the secrets out.
    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    hosts = (parts.get("host") or parts.get("hostaddr") or "").split(",")
    ports = parts.get("port", "").split(",")
    user = quote(parts["user"], safe="") + "@" if "user" in parts else ""
    database = "/" + quote(parts["dbname"], safe="") if "dbname" in parts else ""
    if hosts[0].startswith("/"):
        query = {"host": ",".join(hosts)} | ({"port": ",".join(ports)} if ports[0] else {})
        return f"postgresql://{user}{database or '/'}?{urlencode(query, safe='/,')}"
    places = []
    for index, host in enumerate(hosts):
        port = ports[index] if index < len(ports) else ports[-1]
        places.append((f"[{host}]" if ":" in host else host) + (f":{port}" if port else ""))
    return f"postgresql://{user}{','.join(places)}{database}"
