"""A row and its job in one commit: both exist, or neither."""

import asyncio
import sqlite3
from datetime import timedelta

from tenure import AsyncContext, Tenure

app = Tenure("sqlite:///shop.db", organization="studio", project="shop", actor="user:42")


@app.job("pack")
async def pack(ctx: AsyncContext, order: dict) -> str:
    """Mark an order as packed, under the fence."""
    async with ctx.publish() as tx:
        await tx.execute("UPDATE orders SET packed = 1 WHERE id = ?", [order["id"]])
    return f"order {order['id']} is packed"


def accept(order: int, *, then_fail: bool = False) -> None:
    """Accept an order in the shop's own transaction."""
    connection = sqlite3.connect("shop.db")
    try:
        with connection:  # commits at its end, rolls back on an error
            connection.execute("INSERT INTO orders (id) VALUES (?)", [order])
            app.join(connection).enqueue(pack, {"id": order}, key=f"order-{order}")
            if then_fail:
                raise RuntimeError("the order was withdrawn")
    finally:
        connection.close()


async def work() -> None:
    """Run a worker until nothing is left to do."""
    service = await app.aservice()
    async with app.worker(poll=timedelta(milliseconds=50)):
        while not all(job.status == "completed" for job in await service.list_jobs(limit=10)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for job in await service.list_jobs(limit=10):
        print(job.idempotency_key, job.status, job.result)
    await app.aclose()


def main() -> None:
    """Accept two orders, one of which is taken back, and do the work."""
    app.migrate()
    connection = sqlite3.connect("shop.db")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, packed INTEGER DEFAULT 0)")
    connection.close()
    accept(1)
    try:
        accept(2, then_fail=True)
    except RuntimeError as error:
        print("order 2 and its job are gone together:", error)
    asyncio.run(work())


if __name__ == "__main__":
    main()
