"""Write invoices for what a webhook says, once each: mark and invoice in one commit, and only then a 2xx."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tenure
from tenure.connectors.webhook import verify_webhook
from tenure.stores.contract import Store

BYTES_MAX = 1 << 20


def receive(store: Store, secret: str, headers: dict[str, str], body: bytes) -> int:
    """Apply a request and give the status to answer with; the sender tries again after 401 and 503."""
    try:
        event = verify_webhook(headers, body, secret)
    except tenure.Refused as problem:  # not signed by us, or long ago
        print(f"refused: {problem.code}", flush=True)
        return 401
    except tenure.Invalid as problem:  # signed, and no event; it will be none the next time
        print(f"not an event: {problem.code}", flush=True)
        return 413 if problem.code == "EVENT_TOO_LARGE" else 400
    try:
        with store.transaction() as tx:
            receipt = tenure.inbox.receive(tx, "invoices", event, event.delivery_id)
            if receipt.new:
                row = [event.operation, event.data["quote"], event.data["total"]]
                tx.execute("INSERT INTO invoices VALUES (?, ?, ?)", row)
    except tenure.Conflict as problem:  # one name for two meanings: the sender sets it aside for a person
        print(f"{event.operation}: {problem.code}", flush=True)
        return 422
    except Exception as problem:  # noqa: BLE001 - the database is away, or this program is wrong
        print(f"{event.operation}: not now, {type(problem).__name__}", flush=True)
        return 503
    print(f"{event.operation}: {'written' if receipt.new else 'known'}", flush=True)
    return 204


class Hook(BaseHTTPRequestHandler):
    """Hands a request over and answers with its status."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    store: Store
    secret: str

    def do_POST(self) -> None:
        """Read no more than an event may have."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BYTES_MAX:
            self.close_connection = True
            self.answer(413 if length.isdecimal() else 411)
            return
        self.answer(receive(self.store, self.secret, dict(self.headers), self.rfile.read(int(length))))

    def answer(self, status: int) -> None:
        """Answer with a status and no text."""
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Leave the log to what happened to events."""


def main(url: str, port: str, secret: str) -> None:
    """Serve until Ctrl-C."""
    Hook.store, Hook.secret = tenure.open_store(url), secret
    Hook.store.migrate()
    with Hook.store.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS invoices (operation TEXT PRIMARY KEY, quote INTEGER, total INTEGER)")
    with ThreadingHTTPServer(("127.0.0.1", int(port)), Hook) as server:
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python receive_webhook.py sqlite:///books.db 8080 whsec_...")
    main(*sys.argv[1:])
