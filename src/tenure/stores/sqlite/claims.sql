-- The SQLite store's statements that find work, take it, and park what nobody takes, in the order of the PostgreSQL twin.
-- How they are written is said at the head of statements.sql; here too a statement may have several parts, each run for
-- all rows before the next one, and `expires_at - now <= 0` keeps expiry out of every index.

-- name: resting_queues() once
-- locks nothing; every queue with parked rows
SELECT DISTINCT queue FROM tenure_resting WHERE status = 'queued' ORDER BY queue;

-- name: ready_front(queue, tenant, organization, kinds, owner, rounds, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice, from the very front of the queue. Its lanes go
-- round, beginning behind the one that was served last; each gives its weight for so many rounds. A queue with nothing
-- but the lane without a name gives all from there, and its last column, the lane, is null.
WITH RECURSIVE place (turn, last) AS (
    SELECT (SELECT q.turn FROM tenure_queue q WHERE q.name = :queue),
        (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue ORDER BY r.queue DESC, r.lane DESC LIMIT 1)
),
ring (lane, wrapped, nth) AS (
    SELECT
        COALESCE(
            (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue AND r.lane > p.turn ORDER BY r.lane LIMIT 1),
            (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue ORDER BY r.lane LIMIT 1)
        ),
        p.turn IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tenure_ready r WHERE r.queue = :queue AND r.lane > p.turn),
        1
    FROM place p WHERE :tenant IS NULL
    UNION ALL
    SELECT
        CASE WHEN l.wrapped THEN
            (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue AND r.lane > l.lane AND r.lane <= p.turn ORDER BY r.lane LIMIT 1)
        ELSE COALESCE(
            (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue AND r.lane > l.lane ORDER BY r.lane LIMIT 1),
            (SELECT r.lane FROM tenure_ready r WHERE r.queue = :queue AND r.lane <= p.turn ORDER BY r.lane LIMIT 1)
        ) END,
        l.wrapped OR NOT EXISTS (SELECT 1 FROM tenure_ready r WHERE r.queue = :queue AND r.lane > l.lane),
        l.nth + 1
    FROM ring l CROSS JOIN place p WHERE l.lane IS NOT NULL
),
lanes (lane, nth) AS (
    SELECT lane, nth FROM ring WHERE lane IS NOT NULL
    UNION ALL
    SELECT '', 1 WHERE :tenant IS NOT NULL
    UNION ALL
    SELECT :tenant, 2 WHERE :tenant IS NOT NULL
),
picked AS (
    SELECT r.*, l.nth, row_number() OVER (PARTITION BY l.nth ORDER BY r.priority DESC, r.run_at, r.job_id) AS place
    FROM lanes l
    CROSS JOIN tenure_ready r ON r.job_id IN (
        SELECT x.job_id FROM tenure_ready x
        WHERE x.queue = :queue AND x.lane = l.lane
            AND (:tenant IS NULL OR x.tenant = :tenant)
            AND (:organization IS NULL OR x.organization = :organization)
            AND (:kinds IS NULL OR x.kind IN (SELECT value FROM json_each(:kinds)))
            AND EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = x.tenant AND a.epoch = x.epoch AND a.frozen = 0)
            AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
            AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = :queue AND (q.paused_at IS NOT NULL OR q.owner <> COALESCE(:owner, '')))
        ORDER BY x.priority DESC, x.run_at, x.job_id
        LIMIT :limit
    )
)
SELECT 'ready', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now,
    CASE WHEN (SELECT last FROM place) <> '' THEN r.lane END
FROM picked r
JOIN tenure_job j ON j.job_id = r.job_id
JOIN tenure_authority a ON a.tenant = r.tenant
WHERE (SELECT last FROM place) = '' OR r.place <= :rounds * COALESCE(
    (SELECT w.weight FROM tenure_queue_weight w WHERE w.tenant = r.lane AND w.queue = :queue), 1
)
ORDER BY r.nth, r.place
LIMIT :limit;

-- name: queue_turn(name, lane) once
-- writes queue: whose turn it was, where nobody else is writing it
UPDATE tenure_queue SET turn = :lane WHERE name = :name;

-- name: ready_fronts(queues, lanes, limit) once
-- locks nothing; the first rows of every queue by hops over the index: of each priority in the lane without a name, one of
-- every other lane. Of each queue at most so many lanes, beginning with the one given for it, round and back to it.
-- With each its weight, and how many microseconds it took to come so far; always 0 here, where a statement has one `now`:
-- a worker looks anew before each claim from a fair queue of which it sees all lanes (`Cursor.good_for`).
WITH RECURSIVE queues (queue) AS (
    SELECT * FROM (SELECT r.queue FROM tenure_ready r ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM tenure_ready r WHERE r.queue > q.queue ORDER BY r.queue LIMIT 1)
    FROM queues q WHERE q.queue IS NOT NULL
),
starts (queue, lane) AS (
    SELECT q.queue, (
        SELECT l.value FROM json_each(:queues) g JOIN json_each(:lanes) l ON l.key = g.key WHERE g.value = q.queue
    )
    FROM queues q WHERE q.queue IS NOT NULL
),
fronts (start, front) AS (
    SELECT s.lane, COALESCE(
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, 0, 1) FROM tenure_ready r
            WHERE r.queue = s.queue AND r.lane >= s.lane
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, s.lane IS NOT NULL, 1) FROM tenure_ready r
            WHERE r.queue = s.queue
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        )
    )
    FROM starts s
    UNION ALL
    SELECT f.start, COALESCE(
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, json_extract(f.front, '$[5]'), json_extract(f.front, '$[6]')) FROM tenure_ready r
            WHERE json_extract(f.front, '$[1]') = '' AND r.queue = json_extract(f.front, '$[0]') AND r.lane = '' AND r.priority < json_extract(f.front, '$[2]')
            ORDER BY r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, 0, json_extract(f.front, '$[6]') + 1) FROM tenure_ready r
            WHERE NOT json_extract(f.front, '$[5]') AND json_extract(f.front, '$[6]') < :limit AND r.queue = json_extract(f.front, '$[0]') AND r.lane > json_extract(f.front, '$[1]')
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, 1, json_extract(f.front, '$[6]') + 1) FROM tenure_ready r
            WHERE json_extract(f.front, '$[5]') AND json_extract(f.front, '$[6]') < :limit AND r.queue = json_extract(f.front, '$[0]') AND r.lane > json_extract(f.front, '$[1]') AND r.lane < f.start
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id, 1, json_extract(f.front, '$[6]') + 1) FROM tenure_ready r
            WHERE NOT json_extract(f.front, '$[5]') AND json_extract(f.front, '$[6]') < :limit AND r.queue = json_extract(f.front, '$[0]') AND r.lane < f.start
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        )
    )
    FROM fronts f WHERE f.front IS NOT NULL
)
SELECT json_extract(f.front, '$[0]'), json_extract(f.front, '$[1]'), json_extract(f.front, '$[2]'), json_extract(f.front, '$[3]'), json_extract(f.front, '$[4]'),
    COALESCE((SELECT w.weight FROM tenure_queue_weight w WHERE w.tenant = json_extract(f.front, '$[1]') AND w.queue = json_extract(f.front, '$[0]')), 1), 0
FROM fronts f WHERE f.front IS NOT NULL;

-- name: claim_batch(queue, lane, priority, bound, bound_id, below, share, worker_id, worker_json, claim_id, lease_us, tenant, organization, kinds, owner, limit, before, command_id) each
-- locks the ready rows it takes, skipping locked ones; writes ready, lease, event: `moves.claim` with start=True, for the
-- rows behind a worker's cursor, one probe for each of its entries in their order; where an entry says so, another one
-- for the lower priorities of its lane. The first column is the lane. See procedures/claim_batch.py. Leases are found by
-- claim and tenant, all tenants for the lane without a name: no tenant's name is as large as the last character. `before`
-- are the jobs that this claim took with earlier statements.
INSERT INTO tenure_lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT r.job_id, r.tenant, 'running', :worker_id,
    lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
    :claim_id, :now + COALESCE(:lease_us, j.lease_us), COALESCE(:lease_us, j.lease_us), :now, r.run_at,
    r.generation + 1, r.attempt + 1, r.attempts_max, r.epoch, r.error_code, r.error_message
FROM (
    SELECT * FROM (
        SELECT r.* FROM tenure_ready r
        WHERE r.queue = :queue AND r.lane = :lane AND r.priority = :priority
            AND (r.run_at, r.job_id) >= (:bound, :bound_id)
            AND r.run_at <= :now
            AND (:tenant IS NULL OR r.tenant = :tenant)
            AND (:organization IS NULL OR r.organization = :organization)
            AND r.kind IN (SELECT value FROM json_each(:kinds))
            AND r.error_code IS NOT 'WORKER_LOST'
            AND EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0)
            AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
            AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = :queue AND (q.paused_at IS NOT NULL OR q.owner <> COALESCE(:owner, '')))
        ORDER BY r.run_at, r.job_id
        LIMIT :share
    )
    UNION ALL
    SELECT * FROM (
        SELECT r.* FROM tenure_ready r
        WHERE :below AND r.queue = :queue AND r.lane = :lane AND r.priority < :priority
            AND r.run_at <= :now
            AND (:tenant IS NULL OR r.tenant = :tenant)
            AND (:organization IS NULL OR r.organization = :organization)
            AND r.kind IN (SELECT value FROM json_each(:kinds))
            AND r.error_code IS NOT 'WORKER_LOST'
            AND EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0)
            AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
            AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = :queue AND (q.paused_at IS NOT NULL OR q.owner <> COALESCE(:owner, '')))
        ORDER BY r.priority DESC, r.run_at, r.job_id
        LIMIT :share
    )
) r
CROSS JOIN tenure_job j ON j.job_id = r.job_id
LIMIT min(:share, max(0, :limit + :before - (SELECT count(*) FROM tenure_lease WHERE claim_id = :claim_id)));

INSERT INTO tenure_event (job_id, tenant, name, at, generation, status, data, command_id)
SELECT l.job_id, l.tenant, 'claimed', l.claimed_at, l.generation, 'running',
    '{"worker":' || :worker_json || ',"attempt":' || l.attempt || ',"attempt_id":"' || l.attempt_id || '"}', :command_id
FROM tenure_lease l CROSS JOIN tenure_ready r ON r.job_id = l.job_id
WHERE l.claim_id = :claim_id AND l.tenant BETWEEN :lane AND CASE :lane WHEN '' THEN char(1114111) ELSE :lane END
    AND +r.queue = :queue AND +r.lane = :lane AND (+r.priority = :priority OR (:below AND +r.priority < :priority))
ORDER BY r.priority DESC, l.run_at, l.job_id;

SELECT r.lane, l.job_id, l.tenant, l.status, l.generation, l.attempt, l.attempts_max, l.epoch, l.run_at, l.worker_id,
    l.attempt_id, l.expires_at, l.lease_us, l.claimed_at, NULL, NULL, NULL, NULL,
    NULL, l.error_code, l.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    l.epoch, 0, 0, l.claimed_at
FROM tenure_lease l
CROSS JOIN tenure_ready r ON r.job_id = l.job_id
JOIN tenure_job j ON j.job_id = l.job_id
WHERE l.claim_id = :claim_id AND l.tenant BETWEEN :lane AND CASE :lane WHEN '' THEN char(1114111) ELSE :lane END
    AND +r.queue = :queue AND +r.lane = :lane AND (+r.priority = :priority OR (:below AND +r.priority < :priority))
ORDER BY r.priority DESC, l.run_at, l.job_id;

DELETE FROM tenure_ready WHERE job_id IN (
    SELECT l.job_id FROM tenure_lease l WHERE l.claim_id = :claim_id AND l.tenant BETWEEN :lane AND CASE :lane WHEN '' THEN char(1114111) ELSE :lane END
);

-- name: ready_lost(queues, tenant, organization, kinds, owner, limit) once
-- locks the ready rows it takes, skipping locked ones; only jobs whose last worker was lost, by an index of their own
SELECT 'ready', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_ready r
JOIN tenure_job j ON j.job_id = r.job_id
JOIN tenure_authority a ON a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
WHERE r.error_code = 'WORKER_LOST'
    AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)))
    AND (:tenant IS NULL OR r.tenant = :tenant)
    AND (:organization IS NULL OR r.organization = :organization)
    AND (:kinds IS NULL OR r.kind IN (SELECT value FROM json_each(:kinds)))
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
    AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = r.queue AND (q.paused_at IS NOT NULL OR q.owner <> COALESCE(:owner, '')))
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: resting_front(queue, tenant, organization, kinds, owner, limit) once
-- locks parked rows it takes, skipping locked ones; the single claim looks here too
SELECT 'resting', r.job_id, r.tenant, 'queued', r.generation, r.attempt, r.attempts_max, r.epoch, r.run_at, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, r.parked,
    NULL, r.error_code, r.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_resting r
JOIN tenure_job j ON j.job_id = r.job_id
JOIN tenure_authority a ON a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
WHERE r.status = 'queued' AND r.queue = :queue AND r.run_at <= :now
    AND (:tenant IS NULL OR r.tenant = :tenant)
    AND (:organization IS NULL OR r.organization = :organization)
    AND (:kinds IS NULL OR r.kind IN (SELECT value FROM json_each(:kinds)))
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
    AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = r.queue AND (q.paused_at IS NOT NULL OR q.owner <> COALESCE(:owner, '')))
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: deferred_due(limit) once
-- locks the deferred rows that are due, skipping locked ones
SELECT job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM tenure_deferred WHERE run_at <= :now ORDER BY run_at, job_id LIMIT :limit;

-- name: lease_expired(limit) once
-- locks nothing; leases that have ended; frozen ones stay as they are and must not use up the limit
SELECT l.job_id FROM tenure_lease l
WHERE l.expires_at - :now <= 0
    AND NOT EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = l.tenant AND a.frozen = 1)
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY l.job_id LIMIT :limit;

-- name: claim_insert(claim_id, worker_id, scope) once
-- writes claim
INSERT INTO tenure_claim (claim_id, worker_id, scope, at) VALUES (:claim_id, :worker_id, :scope, :now);

-- name: claim_read(claim_id) once
-- locks nothing
SELECT worker_id, scope FROM tenure_claim WHERE claim_id = :claim_id;

-- name: claim_leases(claim_id) once
-- locks nothing; the jobs a claim took that are still leased by it
SELECT job_id FROM tenure_lease WHERE claim_id = :claim_id;

-- name: claim_prune(before) once
-- writes claim: forgets claims older than the given instant
DELETE FROM tenure_claim WHERE at < :before;

-- name: announcement_save(worker_id, kinds, owner, providers, lifetime_us) once
-- writes announcement
INSERT INTO tenure_announcement (worker_id, kinds, owner, providers, expires_at)
VALUES (:worker_id, :kinds, :owner, :providers, :now + :lifetime_us)
ON CONFLICT (worker_id) DO UPDATE SET
    kinds = excluded.kinds, owner = excluded.owner, providers = excluded.providers, expires_at = excluded.expires_at;

-- name: announcement_delete(worker_id) once
-- writes announcement
DELETE FROM tenure_announcement WHERE worker_id = :worker_id OR expires_at <= :now;

-- name: ready_unclaimable(queue, lane, limit) each
-- locks, of the rows at the front of a lane, those that no live worker knows or that are held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message,
    CASE WHEN r.known THEN 'held' ELSE 'unannounced' END
FROM (
    SELECT f.*, EXISTS (
        SELECT 1 FROM tenure_announcement n, json_each(n.kinds) k WHERE n.expires_at > :now AND k.value = f.kind
    ) AS known
    FROM (
        SELECT * FROM tenure_ready WHERE queue = :queue AND lane = :lane ORDER BY priority DESC, run_at, job_id LIMIT :limit
    ) f
) r
WHERE NOT r.known
OR NOT EXISTS (
    SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
);

-- name: resting_claimable(limit) once
-- locks parked rows that a live worker knows and that are not held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message
FROM tenure_resting r
WHERE r.status = 'queued'
AND r.kind IN (SELECT k.value FROM tenure_announcement n, json_each(n.kinds) k WHERE n.expires_at > :now)
AND EXISTS (
    SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
)
LIMIT :limit;

-- name: queue_save(name, fair) once
-- writes queue
INSERT INTO tenure_queue (name, fair) VALUES (:name, :fair)
ON CONFLICT (name) DO UPDATE SET fair = excluded.fair;

-- name: queue_unweigh(name) once
-- writes queue_weight: forgets a queue's weights; its queue row is locked
DELETE FROM tenure_queue_weight WHERE queue = :name;

-- name: queue_weigh(tenant, queue, weight) each
-- writes queue_weight; its queue row is locked
INSERT INTO tenure_queue_weight (tenant, queue, weight) VALUES (:tenant, :queue, :weight);

-- name: queue_list() once
-- locks nothing; every queue that somebody has said something about, with its weights, one row for each or one without
SELECT q.name, q.fair, w.tenant, w.weight FROM tenure_queue q LEFT JOIN tenure_queue_weight w ON w.queue = q.name
ORDER BY q.name, w.tenant;
