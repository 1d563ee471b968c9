-- The PostgreSQL store's statements about messages that are applied once, in the order of the SQLite twin. How they are
-- written is said at the head of statements.sql.

-- name: inbox_consumer_ensure(consumer, replay_window_us, retention_us) once
-- writes inbox_consumer at a consumer's first use
INSERT INTO tenure.inbox_consumer (consumer, replay_window_us, retention_us)
SELECT %(consumer)b::text, %(replay_window_us)b::bigint, %(retention_us)b::bigint
WHERE NOT EXISTS (SELECT FROM tenure.inbox_consumer WHERE consumer = %(consumer)b::text)
ON CONFLICT DO NOTHING;

-- name: inbox_consumer_save(consumer, replay_window_us, retention_us) once
-- writes inbox_consumer
INSERT INTO tenure.inbox_consumer (consumer, replay_window_us, retention_us)
VALUES (%(consumer)b::text, %(replay_window_us)b::bigint, %(retention_us)b::bigint)
ON CONFLICT (consumer) DO UPDATE SET replay_window_us = excluded.replay_window_us, retention_us = excluded.retention_us;

-- name: inbox_consumer_read(consumer) once
-- locks nothing
SELECT replay_window_us, retention_us FROM tenure.inbox_consumer WHERE consumer = %(consumer)b::text;

-- name: inbox_reserve(tenant, consumer, operation, digest, delivery_id) once
-- writes inbox where the operation is new to the consumer; waits for another transaction that receives the same one
INSERT INTO tenure.inbox (tenant, consumer, operation, digest, delivery_id, received_at, seen_at, seen)
SELECT %(tenant)b::text, %(consumer)b::text, %(operation)b::text, %(digest)b::text, %(delivery_id)b::text, c.now, c.now, 1
FROM (SELECT tenure.now_us() AS now) c
ON CONFLICT DO NOTHING
RETURNING received_at;

-- name: inbox_delivery_reserve(tenant, consumer, delivery_id, operation) once
-- writes inbox_delivery where the delivery is new to the consumer; waits for another transaction that takes the same one
INSERT INTO tenure.inbox_delivery (tenant, consumer, delivery_id, operation)
VALUES (%(tenant)b::text, %(consumer)b::text, %(delivery_id)b::text, %(operation)b::text)
ON CONFLICT DO NOTHING
RETURNING operation;

-- name: inbox_delivery_read(tenant, consumer, delivery_id) once
-- locks nothing; the operation that a delivery brought
SELECT operation FROM tenure.inbox_delivery
WHERE tenant = %(tenant)b::text AND consumer = %(consumer)b::text AND delivery_id = %(delivery_id)b::text;

-- name: inbox_see(tenant, consumer, operation) once
-- writes inbox: a known operation came again; locks its row
UPDATE tenure.inbox SET seen = seen + 1, seen_at = tenure.now_us()
WHERE tenant = %(tenant)b::text AND consumer = %(consumer)b::text AND operation = %(operation)b::text
RETURNING digest, delivery_id, received_at, seen;

-- name: inbox_prune(tenant, consumer, older_us, limit) once
-- writes inbox, inbox_delivery: forgets operations that came first longer ago and did not come again since, oldest first
WITH old AS MATERIALIZED (
    SELECT tenant, consumer, operation FROM tenure.inbox
    WHERE consumer = %(consumer)b::text AND received_at <= (SELECT tenure.now_us()) - %(older_us)b::bigint
        AND seen_at - (SELECT tenure.now_us()) <= - %(older_us)b::bigint
        AND (%(tenant)b::text IS NULL OR tenant = %(tenant)b)
    ORDER BY received_at LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED
),
arrivals AS (
    DELETE FROM tenure.inbox_delivery d USING old
    WHERE d.tenant = old.tenant AND d.consumer = old.consumer AND d.operation = old.operation
)
DELETE FROM tenure.inbox i USING old
WHERE i.tenant = old.tenant AND i.consumer = old.consumer AND i.operation = old.operation
RETURNING i.operation;
