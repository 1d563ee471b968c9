-- The PostgreSQL store's statements that find work, take it, and park what nobody takes, in the order of the SQLite twin.
-- How they are written is said at the head of statements.sql; here too `expires_at - now <= 0` keeps expiry out of every
-- index.

-- name: resting_queues() once
-- locks nothing; every queue with parked rows
SELECT DISTINCT queue FROM tenure.resting WHERE status = 'queued' ORDER BY queue;

-- name: ready_front(queue, tenant, organization, kinds, owner, rounds, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice, from the very front of the queue. Its lanes go
-- round, beginning behind the one that was served last; each gives its weight for so many rounds. A queue with nothing
-- but the lane without a name gives all from there, and its last column, the lane, is null.
WITH RECURSIVE place AS MATERIALIZED (
    SELECT (SELECT q.turn FROM tenure.queue q WHERE q.name = %(queue)b) AS turn,
        (SELECT r.lane FROM tenure.ready r WHERE r.queue = %(queue)b ORDER BY r.queue DESC, r.lane DESC LIMIT 1) AS last
),
ring AS (
    SELECT n.lane, n.wrapped, place.turn
    FROM place
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT r.lane, false AS wrapped FROM tenure.ready r WHERE r.queue = %(queue)b AND r.lane > place.turn
            ORDER BY r.queue, r.lane LIMIT 1
        ) later
        UNION ALL
        SELECT * FROM (
            SELECT r.lane, place.turn IS NOT NULL FROM tenure.ready r WHERE r.queue = %(queue)b
            ORDER BY r.queue, r.lane LIMIT 1
        ) first
        LIMIT 1
    ) n
    WHERE %(tenant)b::text IS NULL
    UNION ALL
    SELECT n.lane, n.wrapped, l.turn
    FROM ring l
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT r.lane, l.wrapped FROM tenure.ready r
            WHERE r.queue = %(queue)b AND r.lane > l.lane AND NOT l.wrapped ORDER BY r.queue, r.lane LIMIT 1
        ) later
        UNION ALL
        SELECT * FROM (
            SELECT r.lane, l.wrapped FROM tenure.ready r
            WHERE r.queue = %(queue)b AND r.lane > l.lane AND r.lane <= l.turn AND l.wrapped ORDER BY r.queue, r.lane LIMIT 1
        ) again
        UNION ALL
        SELECT * FROM (
            SELECT r.lane, true FROM tenure.ready r
            WHERE r.queue = %(queue)b AND r.lane <= l.turn AND NOT l.wrapped ORDER BY r.queue, r.lane LIMIT 1
        ) first
        LIMIT 1
    ) n
),
lanes AS (
    SELECT lane FROM ring
    UNION ALL
    SELECT lane FROM unnest(ARRAY['', %(tenant)b::text]) AS own (lane) WHERE %(tenant)b::text IS NOT NULL
),
picked AS MATERIALIZED (
    SELECT r.*, row_number() OVER () AS nth
    FROM lanes l
    CROSS JOIN LATERAL (
        SELECT r.* FROM tenure.ready r
        WHERE r.queue = %(queue)b AND r.lane = l.lane
            AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
            AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
            AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
            AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
            AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
            AND %(queue)b <> ALL(ARRAY(
                SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL OR q.owner <> COALESCE(%(owner)b::text, '')
            ))
        ORDER BY r.priority DESC, r.run_at, r.job_id
        LIMIT CASE
            WHEN (SELECT last FROM place) = '' THEN %(limit)b::bigint
            ELSE %(rounds)b::bigint * COALESCE(
                (SELECT w.weight FROM tenure.queue_weight w WHERE w.tenant = l.lane AND w.queue = %(queue)b), 1
            )
        END
        FOR UPDATE OF r SKIP LOCKED
    ) r
    LIMIT %(limit)b
)
SELECT 'ready', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL::text,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us(),
    CASE WHEN (SELECT last FROM place) <> '' THEN r.lane END
FROM picked r
JOIN tenure.job j ON j.job_id = r.job_id AND j.tenant = r.tenant
LEFT JOIN tenure.authority a ON a.tenant = r.tenant
ORDER BY r.nth;

-- name: queue_turn(name, lane) once
-- writes queue: whose turn it was, where nobody else is writing it
UPDATE tenure.queue SET turn = %(lane)b
WHERE name = (SELECT q.name FROM tenure.queue q WHERE q.name = %(name)b FOR UPDATE SKIP LOCKED);

-- name: ready_fronts(queues, lanes, limit) once
-- locks nothing; the first rows of every queue by hops over the index: of each priority in the lane without a name, one of
-- every other lane. Of each queue at most so many lanes, beginning with the one given for it, round and back to it.
-- With each its weight, and how many microseconds it took to come so far.
WITH RECURSIVE clock AS MATERIALIZED (SELECT tenure.now_us() AS began),
queues AS (
    SELECT f.queue, clock.began
    FROM clock
    CROSS JOIN LATERAL (SELECT r.queue FROM tenure.ready r ORDER BY r.queue LIMIT 1) f
    UNION ALL
    SELECT n.queue, q.began
    FROM queues q
    CROSS JOIN LATERAL (SELECT r.queue FROM tenure.ready r WHERE r.queue > q.queue ORDER BY r.queue LIMIT 1) n
)
SELECT q.queue, f.lane, f.priority, f.run_at, f.job_id,
    COALESCE((SELECT w.weight FROM tenure.queue_weight w WHERE w.tenant = f.lane AND w.queue = q.queue), 1),
    tenure.now_us() - q.began
FROM queues q
CROSS JOIN LATERAL (
    SELECT (%(lanes)b::text[])[array_position(%(queues)b::text[], q.queue)] AS lane
) start
CROSS JOIN LATERAL (
    WITH RECURSIVE fronts AS (
        SELECT n.*, 1 AS nth FROM (
            SELECT * FROM (
                SELECT false AS wrapped, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE r.queue = q.queue AND r.lane >= start.lane
                ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) later
            UNION ALL
            SELECT * FROM (
                SELECT start.lane IS NOT NULL, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE r.queue = q.queue
                ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) first
            LIMIT 1
        ) n
        UNION ALL
        SELECT n.wrapped, n.lane, n.priority, n.run_at, n.job_id, f.nth + CASE WHEN n.lane = f.lane THEN 0 ELSE 1 END
        FROM fronts f
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT f.wrapped, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE f.lane = '' AND r.queue = q.queue AND r.lane = '' AND r.priority < f.priority
                ORDER BY r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) lower
            UNION ALL
            SELECT * FROM (
                SELECT f.wrapped, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE NOT f.wrapped AND f.nth < %(limit)b::bigint AND r.queue = q.queue AND r.lane > f.lane
                ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) later
            UNION ALL
            SELECT * FROM (
                SELECT f.wrapped, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE f.wrapped AND f.nth < %(limit)b::bigint AND r.queue = q.queue
                    AND r.lane > f.lane AND r.lane < start.lane
                ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) again
            UNION ALL
            SELECT * FROM (
                SELECT true, r.lane, r.priority, r.run_at, r.job_id FROM tenure.ready r
                WHERE NOT f.wrapped AND f.nth < %(limit)b::bigint AND r.queue = q.queue AND r.lane < start.lane
                ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
            ) first
            LIMIT 1
        ) n
    )
    SELECT * FROM fronts
) f;

-- name: claim_batch(queue, lane, priority, bound, bound_id, below, share, worker_id, worker_json, claim_id, lease_us, tenant, organization, kinds, owner, limit, before, command_id) each
-- locks the ready rows it takes, skipping locked ones; writes ready, lease, event: `moves.claim` with start=True, for the
-- rows behind a worker's cursor, one probe for each of its entries in their order; where an entry says so, another one
-- for the lower priorities of its lane. The first column is the lane. See procedures/claim_batch.py.
WITH picked AS MATERIALIZED (
    SELECT r.lane, r.job_id, r.tenant, r.run_at, r.generation + 1 AS generation, r.attempt + 1 AS attempt, r.attempts_max, r.epoch,
        r.error_code, r.error_message, row_number() OVER () AS nth
    FROM unnest(%(queue)b::text[], %(lane)b::text[], %(priority)b::integer[], %(bound)b::bigint[], %(bound_id)b::uuid[], %(below)b::boolean[], %(share)b::bigint[])
        WITH ORDINALITY AS cursor (queue, lane, priority, bound, bound_id, below, share, nth)
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT r.* FROM tenure.ready r
            WHERE r.queue = cursor.queue AND r.lane = cursor.lane AND r.priority = cursor.priority
                AND (r.run_at, r.job_id) >= (cursor.bound, cursor.bound_id)
                AND r.run_at <= (SELECT tenure.now_us())
                AND ((%(tenant)b::text[])[1] IS NULL OR r.tenant = (%(tenant)b::text[])[1])
                AND ((%(organization)b::text[])[1] IS NULL OR r.organization = (%(organization)b::text[])[1])
                AND r.kind = ANY(ARRAY(SELECT json_array_elements_text((%(kinds)b::text[])[1]::json)))
                AND r.error_code IS DISTINCT FROM 'WORKER_LOST'
                AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
            ORDER BY r.run_at, r.job_id
            LIMIT cursor.share
            FOR UPDATE OF r SKIP LOCKED
        ) here
        UNION ALL
        SELECT * FROM (
            SELECT r.* FROM tenure.ready r
            WHERE cursor.below AND r.queue = cursor.queue AND r.lane = cursor.lane AND r.priority < cursor.priority
                AND r.run_at <= (SELECT tenure.now_us())
                AND ((%(tenant)b::text[])[1] IS NULL OR r.tenant = (%(tenant)b::text[])[1])
                AND ((%(organization)b::text[])[1] IS NULL OR r.organization = (%(organization)b::text[])[1])
                AND r.kind = ANY(ARRAY(SELECT json_array_elements_text((%(kinds)b::text[])[1]::json)))
                AND r.error_code IS DISTINCT FROM 'WORKER_LOST'
                AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
            ORDER BY r.priority DESC, r.run_at, r.job_id
            LIMIT cursor.share
            FOR UPDATE OF r SKIP LOCKED
        ) lower
        LIMIT cursor.share
    ) r
    WHERE NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
        AND cursor.queue <> ALL(ARRAY(
            SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL OR q.owner <> COALESCE((%(owner)b::text[])[1], '')
        ))
    LIMIT (%(limit)b::bigint[])[1]
),
clock AS MATERIALIZED (SELECT tenure.now_us() AS now FROM (SELECT count(*) FROM picked) AS locked),
taken AS MATERIALIZED (
    SELECT p.*, gen_random_uuid() AS attempt_id, clock.now, COALESCE((%(lease_us)b::bigint[])[1], j.lease_us) AS lease_us,
        j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority,
        j.payload::text AS payload, j.backoff_us, j.lease_us AS body_lease_us, j.scheduled_at, j.created_at,
        j.on_reconciled, j.on_declined, j.options, j.payload_digest, j.operation_digest
    FROM picked p
    CROSS JOIN clock
    JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
),
gone AS (
    DELETE FROM tenure.ready WHERE job_id = ANY(ARRAY(SELECT t.job_id FROM taken t))
),
leased AS (
    INSERT INTO tenure.lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
    SELECT t.job_id, t.tenant, 'running', (%(worker_id)b::text[])[1], t.attempt_id, (%(claim_id)b::uuid[])[1],
        t.now + t.lease_us, t.lease_us, t.now, t.run_at, t.generation, t.attempt, t.attempts_max, t.epoch, t.error_code, t.error_message
    FROM taken t ORDER BY t.nth
),
noted AS (
    INSERT INTO tenure.event (job_id, tenant, name, at, generation, status, data, command_id)
    SELECT t.job_id, t.tenant, 'claimed', t.now, t.generation, 'running',
        ('{"worker":' || (%(worker_json)b::text[])[1] || ',"attempt":' || t.attempt || ',"attempt_id":"' || t.attempt_id || '"}')::json,
        (%(command_id)b::uuid[])[1]
    FROM taken t ORDER BY t.nth
)
SELECT t.lane, t.job_id, t.tenant, 'running', t.generation, t.attempt, t.attempts_max, t.epoch, t.run_at, (%(worker_id)b::text[])[1],
    t.attempt_id, t.now + t.lease_us, t.lease_us, t.now, NULL::bigint, NULL::text, NULL::text, NULL::text,
    NULL::text, t.error_code, t.error_message, NULL::bigint, NULL::uuid,
    t.organization, t.project, t.idempotency_key, t.subject, t.kind, t.kind_version, t.queue, t.priority, t.payload,
    t.backoff_us, t.body_lease_us, t.scheduled_at, t.created_at, t.on_reconciled, t.on_declined, t.options, t.payload_digest,
    t.operation_digest,
    t.epoch, false, false, t.now
FROM taken t
ORDER BY t.nth;

-- name: ready_lost(queues, tenant, organization, kinds, owner, limit) once
-- locks the ready rows it takes, skipping locked ones; only jobs whose last worker was lost, by an index of their own
WITH picked AS MATERIALIZED (
    SELECT r.* FROM tenure.ready r
    WHERE r.error_code = 'WORKER_LOST'
        AND (%(queues)b::text[] IS NULL OR r.queue = ANY(%(queues)b::text[]))
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
        AND r.queue <> ALL(ARRAY(
            SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL OR q.owner <> COALESCE(%(owner)b::text, '')
        ))
    ORDER BY r.priority DESC, r.run_at, r.job_id
    LIMIT %(limit)b
    FOR UPDATE OF r SKIP LOCKED
)
SELECT 'ready', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL::text,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM picked r
JOIN tenure.job j ON j.job_id = r.job_id AND j.tenant = r.tenant
LEFT JOIN tenure.authority a ON a.tenant = r.tenant
ORDER BY r.priority DESC, r.run_at, r.job_id;

-- name: resting_front(queue, tenant, organization, kinds, owner, limit) once
-- locks parked rows it takes, skipping locked ones; the single claim looks here too
WITH picked AS MATERIALIZED (
    SELECT r.* FROM tenure.resting r
    WHERE r.status = 'queued' AND r.queue = %(queue)b AND r.run_at <= tenure.now_us()
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
        AND r.queue <> ALL(ARRAY(
            SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL OR q.owner <> COALESCE(%(owner)b::text, '')
        ))
    ORDER BY r.priority DESC, r.run_at, r.job_id
    LIMIT %(limit)b
    FOR UPDATE OF r SKIP LOCKED
)
SELECT 'resting', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.parked,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM picked r
JOIN tenure.job j ON j.job_id = r.job_id AND j.tenant = r.tenant
LEFT JOIN tenure.authority a ON a.tenant = r.tenant
ORDER BY r.priority DESC, r.run_at, r.job_id;

-- name: deferred_due(limit) once
-- locks the deferred rows that are due, skipping locked ones
SELECT job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM tenure.deferred WHERE run_at <= (SELECT tenure.now_us()) ORDER BY run_at, job_id LIMIT %(limit)b
FOR UPDATE SKIP LOCKED;

-- name: lease_expired(limit) once
-- locks nothing; leases that have ended; frozen ones stay as they are and must not use up the limit
SELECT l.job_id FROM tenure.lease l
WHERE l.expires_at - (SELECT tenure.now_us()) <= 0
    AND NOT EXISTS (SELECT 1 FROM tenure.authority a WHERE a.tenant = l.tenant AND a.frozen)
    AND NOT EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen')
ORDER BY l.job_id LIMIT %(limit)b;

-- name: claim_insert(claim_id, worker_id, scope) once
-- writes claim
INSERT INTO tenure.claim (claim_id, worker_id, scope, at)
VALUES (%(claim_id)b, %(worker_id)b, %(scope)b, tenure.now_us());

-- name: claim_read(claim_id) once
-- locks nothing
SELECT worker_id, scope FROM tenure.claim WHERE claim_id = %(claim_id)b;

-- name: claim_leases(claim_id) once
-- locks nothing; the jobs a claim took that are still leased by it
SELECT job_id FROM tenure.lease WHERE claim_id = %(claim_id)b;

-- name: claim_prune(before) once
-- writes claim: forgets claims older than the given instant
DELETE FROM tenure.claim WHERE at < %(before)b;

-- name: announcement_save(worker_id, kinds, owner, providers, lifetime_us) once
-- writes announcement
INSERT INTO tenure.announcement (worker_id, kinds, owner, providers, expires_at)
VALUES (%(worker_id)b, %(kinds)b::text[], %(owner)b, %(providers)b::text[], tenure.now_us() + %(lifetime_us)b)
ON CONFLICT (worker_id) DO UPDATE SET
    kinds = excluded.kinds, owner = excluded.owner, providers = excluded.providers, expires_at = excluded.expires_at;

-- name: announcement_delete(worker_id) once
-- writes announcement
DELETE FROM tenure.announcement WHERE worker_id = %(worker_id)b OR expires_at <= tenure.now_us();

-- name: ready_unclaimable(queue, lane, limit) each
-- locks, of the rows at the front of a lane, those that no live worker knows or that are held, skipping locked ones
WITH front AS MATERIALIZED (
    SELECT r.job_id, r.tenant, r.kind, r.epoch
    FROM unnest(%(queue)b::text[], %(lane)b::text[], %(limit)b::bigint[]) AS given (queue, lane, most)
    CROSS JOIN LATERAL (
        SELECT r.job_id, r.tenant, r.kind, r.epoch FROM tenure.ready r
        WHERE r.queue = given.queue AND r.lane = given.lane
        ORDER BY r.priority DESC, r.run_at, r.job_id
        LIMIT given.most
    ) r
),
judged AS MATERIALIZED (
    SELECT f.job_id, EXISTS (
        SELECT FROM tenure.announcement n WHERE n.expires_at > tenure.now_us() AND f.kind = ANY(n.kinds)
    ) AS known, EXISTS (
        SELECT FROM tenure.authority a WHERE a.tenant = f.tenant AND a.epoch = f.epoch AND NOT a.frozen
    ) AS admitted
    FROM front f
)
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message,
    CASE WHEN j.known THEN 'held' ELSE 'unannounced' END
FROM judged j
JOIN tenure.ready r ON r.job_id = j.job_id
WHERE NOT (j.known AND j.admitted)
FOR UPDATE OF r SKIP LOCKED;

-- name: resting_claimable(limit) once
-- locks parked rows that a live worker knows and that are not held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message
FROM tenure.resting r
WHERE r.status = 'queued'
AND r.kind = ANY(ARRAY(
    SELECT unnest(n.kinds) FROM tenure.announcement n WHERE n.expires_at > tenure.now_us()
))
AND EXISTS (
    SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen
)
LIMIT %(limit)b
FOR UPDATE OF r SKIP LOCKED;

-- name: queue_save(name, fair) once
-- writes queue
INSERT INTO tenure.queue (name, fair) VALUES (%(name)b, %(fair)b::boolean)
ON CONFLICT (name) DO UPDATE SET fair = excluded.fair;

-- name: queue_unweigh(name) once
-- writes queue_weight: forgets a queue's weights; its queue row is locked
DELETE FROM tenure.queue_weight WHERE queue = %(name)b;

-- name: queue_weigh(tenant, queue, weight) each
-- writes queue_weight; its queue row is locked
INSERT INTO tenure.queue_weight (tenant, queue, weight)
SELECT tenant, queue, weight FROM unnest(%(tenant)b::text[], %(queue)b::text[], %(weight)b::integer[]) AS given (tenant, queue, weight);

-- name: queue_list() once
-- locks nothing; every queue that somebody has said something about, with its weights, one row for each or one without
SELECT q.name, q.fair, w.tenant, w.weight FROM tenure.queue q LEFT JOIN tenure.queue_weight w ON w.queue = q.name
ORDER BY q.name, w.tenant;
