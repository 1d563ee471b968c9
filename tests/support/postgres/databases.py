"""Fresh databases on one server: empty ones, and copies of one that was prepared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql


class Databases:
    """
    Makes and drops databases; one instance for each test process.

    Args:
        url: The URL of a role that may create databases.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._templates: dict[str, str] = {}
        self._made: set[str] = set()

    def create(self, *, template: str = "template0") -> str:
        """Make a database nobody has used yet and give its URL."""
        # UTF8 is named, so that a server made with another encoding gives the same database.
        name = f"tenure_{uuid4().hex[:16]}"
        self._admin(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        self._made.add(name)
        return self._url_of(name)

    def copy(self, label: str, prepare: Callable[[str], None]) -> str:
        """
        Make a copy of a database that `prepare` filled; it is called once for each label.

        Args:
            prepare: Gets the URL of an empty database; must close every connection it opens.
        """
        if label not in self._templates:
            url = self.create()
            try:
                prepare(url)
            except BaseException:
                self.drop(url)
                raise
            self._templates[label] = _name_of(url)
        return self.create(template=self._templates[label])

    @contextmanager
    def lend(self, label: str, prepare: Callable[[str], None]) -> Iterator[str]:
        """Give the URL of a copy for as long as a block lasts; see `copy`."""
        url = self.copy(label, prepare)
        try:
            yield url
        finally:
            self.drop(url)

    def drop(self, url: str) -> None:
        """Drop a database and end whatever is still connected to it."""
        name = _name_of(url)
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._made.discard(name)

    def close(self) -> None:
        """Drop everything made here; matters on a server that lives on."""
        for name in sorted(self._made):
            self.drop(self._url_of(name))

    def _url_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def _admin(self, statement: sql.Composed) -> None:
        # A connection for each: a test may restart the server between two of them.
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


def _name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
