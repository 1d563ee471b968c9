-- The SQLite store's statements about messages that are applied once, in the order of the PostgreSQL twin. How they are
-- written is said at the head of statements.sql.

-- name: inbox_consumer_ensure(consumer, replay_window_us, retention_us) once
-- writes inbox_consumer at a consumer's first use
INSERT INTO tenure_inbox_consumer (consumer, replay_window_us, retention_us)
VALUES (:consumer, :replay_window_us, :retention_us) ON CONFLICT DO NOTHING;

-- name: inbox_consumer_save(consumer, replay_window_us, retention_us) once
-- writes inbox_consumer
INSERT INTO tenure_inbox_consumer (consumer, replay_window_us, retention_us)
VALUES (:consumer, :replay_window_us, :retention_us)
ON CONFLICT (consumer) DO UPDATE SET replay_window_us = excluded.replay_window_us, retention_us = excluded.retention_us;

-- name: inbox_consumer_read(consumer) once
-- locks nothing
SELECT replay_window_us, retention_us FROM tenure_inbox_consumer WHERE consumer = :consumer;

-- name: inbox_reserve(tenant, consumer, operation, digest, delivery_id) once
-- writes inbox where the operation is new to the consumer; waits for another transaction that receives the same one
INSERT INTO tenure_inbox (tenant, consumer, operation, digest, delivery_id, received_at, seen_at, seen)
VALUES (:tenant, :consumer, :operation, :digest, :delivery_id, :now, :now, 1)
ON CONFLICT DO NOTHING
RETURNING received_at;

-- name: inbox_delivery_reserve(tenant, consumer, delivery_id, operation) once
-- writes inbox_delivery where the delivery is new to the consumer; waits for another transaction that takes the same one
INSERT INTO tenure_inbox_delivery (tenant, consumer, delivery_id, operation)
VALUES (:tenant, :consumer, :delivery_id, :operation)
ON CONFLICT DO NOTHING
RETURNING operation;

-- name: inbox_delivery_read(tenant, consumer, delivery_id) once
-- locks nothing; the operation that a delivery brought
SELECT operation FROM tenure_inbox_delivery WHERE tenant = :tenant AND consumer = :consumer AND delivery_id = :delivery_id;

-- name: inbox_see(tenant, consumer, operation) once
-- writes inbox: a known operation came again; locks its row
UPDATE tenure_inbox SET seen = seen + 1, seen_at = :now
WHERE tenant = :tenant AND consumer = :consumer AND operation = :operation
RETURNING digest, delivery_id, received_at, seen;

-- name: inbox_prune(tenant, consumer, older_us, limit) once
-- writes inbox, inbox_delivery: forgets operations that came first longer ago and did not come again since, oldest first
DELETE FROM tenure_inbox_delivery WHERE consumer = :consumer AND (tenant, operation) IN (
    SELECT tenant, operation FROM tenure_inbox
    WHERE consumer = :consumer AND received_at <= :now - :older_us AND seen_at <= :now - :older_us
        AND (:tenant IS NULL OR tenant = :tenant)
    ORDER BY received_at, tenant, operation LIMIT :limit
);

DELETE FROM tenure_inbox WHERE consumer = :consumer AND (tenant, operation) IN (
    SELECT tenant, operation FROM tenure_inbox
    WHERE consumer = :consumer AND received_at <= :now - :older_us AND seen_at <= :now - :older_us
        AND (:tenant IS NULL OR tenant = :tenant)
    ORDER BY received_at, tenant, operation LIMIT :limit
) RETURNING operation;
