-- The SQLite store's statements that find work, take it, and park what nobody takes, in the order of the PostgreSQL twin.
-- How they are written is said at the head of statements.sql.

-- name: queue_fronts() once
-- locks nothing; every queue with ready rows, by its first one
WITH RECURSIVE queues (queue) AS (
    SELECT * FROM (SELECT queue FROM tenure_ready WHERE lane = '' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM tenure_ready r WHERE r.queue > q.queue AND r.lane = '' ORDER BY r.queue LIMIT 1)
    FROM queues q WHERE q.queue IS NOT NULL
)
SELECT q.queue, f.priority, f.run_at
FROM queues q
JOIN tenure_ready f ON f.job_id = (
    SELECT r.job_id FROM tenure_ready r WHERE r.queue = q.queue AND r.lane = ''
    ORDER BY r.priority DESC, r.run_at, r.job_id LIMIT 1
)
ORDER BY f.priority DESC, f.run_at, q.queue;

-- name: resting_queues() once
-- locks nothing; every queue with parked rows
SELECT DISTINCT queue FROM tenure_resting WHERE status = 'queued' ORDER BY queue;

-- name: ready_front(queue, tenant, organization, kinds, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice, from the very front of the queue
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
WHERE r.queue = :queue AND r.lane = ''
    AND (:tenant IS NULL OR r.tenant = :tenant)
    AND (:organization IS NULL OR r.organization = :organization)
    AND (:kinds IS NULL OR r.kind IN (SELECT value FROM json_each(:kinds)))
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: ready_fronts() once
-- locks nothing; the first row of every queue, lane and priority, by hops over the index
WITH RECURSIVE fronts (front) AS (
    SELECT (
        SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id) FROM tenure_ready r
        ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
    )
    UNION ALL
    SELECT COALESCE(
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id) FROM tenure_ready r
            WHERE r.queue = json_extract(f.front, '$[0]') AND r.lane = json_extract(f.front, '$[1]') AND r.priority < json_extract(f.front, '$[2]')
            ORDER BY r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id) FROM tenure_ready r
            WHERE r.queue = json_extract(f.front, '$[0]') AND r.lane > json_extract(f.front, '$[1]')
            ORDER BY r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        ),
        (
            SELECT json_array(r.queue, r.lane, r.priority, r.run_at, r.job_id) FROM tenure_ready r
            WHERE r.queue > json_extract(f.front, '$[0]')
            ORDER BY r.queue, r.lane, r.priority DESC, r.run_at, r.job_id LIMIT 1
        )
    )
    FROM fronts f WHERE f.front IS NOT NULL
)
SELECT json_extract(front, '$[0]'), json_extract(front, '$[1]'), json_extract(front, '$[2]'), json_extract(front, '$[3]'),
    json_extract(front, '$[4]')
FROM fronts WHERE front IS NOT NULL;

-- name: claim_batch(queue, lane, priority, bound, bound_id, worker_id, worker_json, claim_id, lease_us, tenant, organization, kinds, limit, command_id) each
-- locks the ready rows it takes, skipping locked ones; writes ready, lease, event: `moves.claim` with start=True, for the
-- rows behind a worker's cursor, one probe for each of its entries in their order. See procedures/claim_batch.py.
INSERT INTO tenure_lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT r.job_id, r.tenant, 'running', :worker_id,
    lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
    :claim_id, :now + COALESCE(:lease_us, j.lease_us), COALESCE(:lease_us, j.lease_us), :now, r.run_at,
    r.generation + 1, r.attempt + 1, r.attempts_max, r.epoch, r.error_code, r.error_message
FROM tenure_ready r
JOIN tenure_job j ON j.job_id = r.job_id
WHERE r.queue = :queue AND r.lane = :lane AND r.priority = :priority AND (r.run_at, r.job_id) >= (:bound, :bound_id)
    AND r.run_at <= :now
    AND (:tenant IS NULL OR r.tenant = :tenant)
    AND (:organization IS NULL OR r.organization = :organization)
    AND r.kind IN (SELECT value FROM json_each(:kinds))
    AND r.error_code IS NOT 'WORKER_LOST'
    AND EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0)
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY r.run_at, r.job_id
LIMIT max(0, :limit - (SELECT count(*) FROM tenure_lease WHERE claim_id = :claim_id AND error_code IS NOT 'WORKER_LOST'));

INSERT INTO tenure_event (job_id, tenant, name, at, generation, status, data, command_id)
SELECT l.job_id, l.tenant, 'claimed', l.claimed_at, l.generation, 'running',
    '{"worker":' || :worker_json || ',"attempt":' || l.attempt || ',"attempt_id":"' || l.attempt_id || '"}', :command_id
FROM tenure_lease l JOIN tenure_ready r ON r.job_id = l.job_id
WHERE l.claim_id = :claim_id AND r.queue = :queue AND r.lane = :lane AND r.priority = :priority
ORDER BY l.run_at, l.job_id;

DELETE FROM tenure_ready WHERE job_id IN (SELECT job_id FROM tenure_lease WHERE claim_id = :claim_id);

SELECT 'lease', l.job_id, l.tenant, l.status, l.generation, l.attempt, l.attempts_max, l.epoch, l.run_at, l.worker_id,
    l.attempt_id, l.expires_at, l.lease_us, l.claimed_at, NULL, NULL, NULL, NULL,
    NULL, l.error_code, l.error_message, NULL, NULL,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    l.epoch, 0, 0, l.claimed_at
FROM tenure_lease l JOIN tenure_job j ON j.job_id = l.job_id
WHERE l.claim_id = :claim_id AND l.error_code IS NOT 'WORKER_LOST'
    AND j.queue = :queue AND j.priority = :priority AND :lane IN ('', l.tenant)
ORDER BY l.run_at, l.job_id;

-- name: ready_lost(queues, tenant, organization, kinds, limit) once
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
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: resting_front(queue, tenant, organization, kinds, limit) once
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
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: deferred_due(limit) once
-- locks the deferred rows that are due, skipping locked ones
SELECT job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
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

-- name: announcement_save(worker_id, kinds, lifetime_us) once
-- writes announcement
INSERT INTO tenure_announcement (worker_id, kinds, expires_at) VALUES (:worker_id, :kinds, :now + :lifetime_us)
ON CONFLICT (worker_id) DO UPDATE SET kinds = excluded.kinds, expires_at = excluded.expires_at;

-- name: announcement_delete(worker_id) once
-- writes announcement
DELETE FROM tenure_announcement WHERE worker_id = :worker_id OR expires_at <= :now;

-- name: ready_unclaimable(queue, limit) once
-- locks, of the rows at the front of a queue, those that no live worker knows or that are held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.lane, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message,
    CASE WHEN r.known THEN 'held' ELSE 'unannounced' END
FROM (
    SELECT f.*, EXISTS (
        SELECT 1 FROM tenure_announcement n, json_each(n.kinds) k WHERE n.expires_at > :now AND k.value = f.kind
    ) AS known
    FROM (
        SELECT * FROM tenure_ready WHERE queue = :queue AND lane = '' ORDER BY priority DESC, run_at, job_id LIMIT :limit
    ) f
) r
WHERE NOT r.known
OR NOT EXISTS (
    SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
);

-- name: resting_claimable(limit) once
-- locks parked rows that a live worker knows and that are not held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.lane, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message
FROM tenure_resting r
WHERE r.status = 'queued'
AND r.kind IN (SELECT k.value FROM tenure_announcement n, json_each(n.kinds) k WHERE n.expires_at > :now)
AND EXISTS (
    SELECT 1 FROM tenure_authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND a.frozen = 0
)
LIMIT :limit;
