-- Every statement of the PostgreSQL store, in the order of its SQLite twin. `each` statements take one array per
-- parameter. `now` is read after the rows are locked: the locking part is materialized first.

-- name: clock() once
-- reads the store's clock
SELECT tenure.now_us();

-- name: authority_ensure(tenant) each
-- writes authority where the tenant is new
INSERT INTO tenure.authority (tenant)
SELECT DISTINCT tenant FROM unnest(%(tenant)b::text[]) AS given (tenant)
WHERE NOT EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = given.tenant)
ORDER BY tenant
ON CONFLICT DO NOTHING;

-- name: authority_read(tenant) each
-- locks nothing; epoch, freezes and the clock
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM tenure.authority a WHERE a.tenant = ANY(%(tenant)b::text[]);

-- name: authority_lock(job_id) each
-- locks the authority rows of these jobs' tenants, shared, in order; the first lock of every fenced write
SELECT a.tenant FROM tenure.authority a
WHERE a.tenant IN (SELECT j.tenant FROM tenure.job j WHERE j.job_id = ANY(%(job_id)b::uuid[]))
ORDER BY a.tenant
FOR SHARE;

-- name: place_lock(job_id) each
-- locks the job's place, whichever of the five it is; no row where it moved meanwhile: look again
WITH locked_ready AS MATERIALIZED (SELECT * FROM tenure.ready WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE),
locked_deferred AS MATERIALIZED (SELECT * FROM tenure.deferred WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE),
locked_lease AS MATERIALIZED (SELECT * FROM tenure.lease WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE),
locked_resting AS MATERIALIZED (SELECT * FROM tenure.resting WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE),
locked_outcome AS MATERIALIZED (SELECT * FROM tenure.outcome WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE),
locked AS (
    SELECT 'ready'::text AS place, job_id, tenant, 'queued'::text AS status, generation, attempt, attempts_max, epoch, run_at,
        NULL::text AS worker_id, NULL::uuid AS attempt_id, NULL::bigint AS expires_at, NULL::bigint AS lease_us,
        NULL::bigint AS claimed_at, NULL::bigint AS cancel_requested_at, NULL::text AS cancel_reason,
        NULL::text AS progress, NULL::text AS parked, NULL::text AS result, error_code, error_message,
        NULL::bigint AS finished_at, NULL::uuid AS command_id
    FROM locked_ready
    UNION ALL
    SELECT 'deferred', job_id, tenant, 'queued', generation, attempt, attempts_max, epoch, run_at,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, error_code, error_message, NULL, NULL
    FROM locked_deferred
    UNION ALL
    SELECT 'lease', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
        worker_id, attempt_id, expires_at, lease_us, claimed_at, cancel_requested_at, cancel_reason, progress,
        NULL, NULL, error_code, error_message, NULL, command_id
    FROM locked_lease
    UNION ALL
    SELECT 'resting', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
        NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, parked, NULL,
        error_code, error_message, finished_at, NULL
    FROM locked_resting
    UNION ALL
    SELECT 'outcome', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
        NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, NULL, result::text,
        error_code, error_message, finished_at, NULL
    FROM locked_outcome
)
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM locked p
JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
LEFT JOIN tenure.authority a ON a.tenant = p.tenant;

-- name: place_lock_free(job_id) each
-- locks leases that nobody else holds locked; renewals never wait for a publish
WITH locked_lease AS MATERIALIZED (SELECT * FROM tenure.lease WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED),
locked AS (
    SELECT 'lease'::text AS place, job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
        worker_id, attempt_id, expires_at, lease_us, claimed_at, cancel_requested_at, cancel_reason, progress,
        NULL::text AS parked, NULL::text AS result, error_code, error_message, NULL::bigint AS finished_at, command_id
    FROM locked_lease
)
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM locked p
JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
LEFT JOIN tenure.authority a ON a.tenant = p.tenant;

-- name: place_read(job_id) each
-- locks nothing
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM tenure.place p
JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
LEFT JOIN tenure.authority a ON a.tenant = p.tenant
WHERE p.job_id = ANY(%(job_id)b::uuid[]);

-- name: body_lock(job_id) each
-- locks the body row: moves out of a terminal place take it first
SELECT job_id FROM tenure.job WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id FOR UPDATE;

-- name: place_list(tenant, organization, project, status, queue, after, limit) once
-- locks nothing; newest last, after the given id
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload::text,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM tenure.place p
JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
LEFT JOIN tenure.authority a ON a.tenant = p.tenant
WHERE (%(tenant)b::text IS NULL OR j.tenant = %(tenant)b)
    AND (%(organization)b::text IS NULL OR j.organization = %(organization)b)
    AND (%(project)b::text IS NULL OR j.project = %(project)b)
    AND (%(status)b::text[] IS NULL OR p.status = ANY(%(status)b))
    AND (%(queue)b::text IS NULL OR j.queue = %(queue)b)
    AND (%(after)b::uuid IS NULL OR j.job_id > %(after)b)
ORDER BY j.job_id
LIMIT %(limit)b;

-- name: ready_delete(job_id, generation) each
-- writes ready: the row must still have this generation
DELETE FROM tenure.ready
WHERE job_id = ANY(%(job_id)b::uuid[])
    AND generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], job_id)]
RETURNING job_id;

-- name: deferred_delete(job_id, generation) each
-- writes deferred: the row must still have this generation
DELETE FROM tenure.deferred
WHERE job_id = ANY(%(job_id)b::uuid[])
    AND generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], job_id)]
RETURNING job_id;

-- name: lease_delete(job_id, generation) each
-- writes lease: the row must still have this generation
DELETE FROM tenure.lease
WHERE job_id = ANY(%(job_id)b::uuid[])
    AND generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], job_id)]
RETURNING job_id;

-- name: resting_delete(job_id, generation) each
-- writes resting: the row must still have this generation
DELETE FROM tenure.resting
WHERE job_id = ANY(%(job_id)b::uuid[])
    AND generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], job_id)]
RETURNING job_id;

-- name: outcome_delete(job_id, generation) each
-- writes outcome: the row must still have this generation
DELETE FROM tenure.outcome
WHERE job_id = ANY(%(job_id)b::uuid[])
    AND generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], job_id)]
RETURNING job_id;

-- name: ready_insert(job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes ready
INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(lane)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message, nth)
ORDER BY nth;

-- name: deferred_insert(job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes deferred
INSERT INTO tenure.deferred (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(lane)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message, nth)
ORDER BY nth;

-- name: lease_insert(job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message) each
-- writes lease
INSERT INTO tenure.lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message)
SELECT job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(status)b::text[], %(worker_id)b::text[], %(attempt_id)b::uuid[], %(claim_id)b::uuid[], %(expires_at)b::bigint[], %(lease_us)b::bigint[], %(claimed_at)b::bigint[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(cancel_requested_at)b::bigint[], %(cancel_reason)b::text[], %(progress)b::text[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message, nth)
ORDER BY nth;

-- name: lease_update(job_id, generation, status, expires_at, cancel_requested_at, cancel_reason, progress) each
-- writes lease in place; no index holds what it changes
UPDATE tenure.lease l SET
    status = (%(status)b::text[])[array_position(%(job_id)b::uuid[], l.job_id)],
    expires_at = (%(expires_at)b::bigint[])[array_position(%(job_id)b::uuid[], l.job_id)],
    cancel_requested_at = (%(cancel_requested_at)b::bigint[])[array_position(%(job_id)b::uuid[], l.job_id)],
    cancel_reason = (%(cancel_reason)b::text[])[array_position(%(job_id)b::uuid[], l.job_id)],
    progress = (%(progress)b::text[])[array_position(%(job_id)b::uuid[], l.job_id)]
WHERE l.job_id = ANY(%(job_id)b::uuid[])
    AND l.generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], l.job_id)]
RETURNING l.job_id;

-- name: resting_insert(job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes resting
INSERT INTO tenure.resting (job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
SELECT job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(status)b::text[], %(parked)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(lane)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(cancel_requested_at)b::bigint[], %(cancel_reason)b::text[], %(error_code)b::text[], %(error_message)b::text[], %(finished_at)b::bigint[])
    WITH ORDINALITY AS given (job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at, nth)
ORDER BY nth;

-- name: outcome_insert(job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes outcome
INSERT INTO tenure.outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
SELECT job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result::json, cancel_requested_at, cancel_reason, error_code, error_message, finished_at
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(status)b::text[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(result)b::text[], %(cancel_requested_at)b::bigint[], %(cancel_reason)b::text[], %(error_code)b::text[], %(error_message)b::text[], %(finished_at)b::bigint[])
    WITH ORDINALITY AS given (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at, nth)
ORDER BY nth;

-- name: job_key_reserve(tenant, project, idempotency_key, job_id, organization, kind, payload_digest) each
-- writes job_key where the key is new; waits for another transaction that reserves the same key
INSERT INTO tenure.job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
SELECT tenant, project, idempotency_key, job_id, organization, kind, payload_digest
FROM unnest(%(tenant)b::text[], %(project)b::text[], %(idempotency_key)b::text[], %(job_id)b::uuid[], %(organization)b::text[], %(kind)b::text[], %(payload_digest)b::text[])
    WITH ORDINALITY AS given (tenant, project, idempotency_key, job_id, organization, kind, payload_digest, nth)
ORDER BY tenant, project, idempotency_key
ON CONFLICT DO NOTHING
RETURNING job_id;

-- name: job_key_read(tenant, project, idempotency_key) each
-- locks nothing
SELECT k.tenant, k.project, k.idempotency_key, k.job_id, k.organization, k.kind, k.payload_digest
FROM unnest(%(tenant)b::text[], %(project)b::text[], %(idempotency_key)b::text[]) AS given (tenant, project, idempotency_key)
JOIN tenure.job_key k USING (tenant, project, idempotency_key);

-- name: job_insert(job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest) each
-- writes job: the immutable body
INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest)
SELECT job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload::json, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(organization)b::text[], %(project)b::text[], %(idempotency_key)b::text[], %(subject)b::text[], %(kind)b::text[], %(kind_version)b::integer[], %(queue)b::text[], %(priority)b::integer[], %(payload)b::text[], %(attempts_max)b::integer[], %(backoff_us)b::bigint[], %(lease_us)b::bigint[], %(scheduled_at)b::bigint[], %(created_at)b::bigint[], %(on_reconciled)b::text[], %(on_declined)b::text[], %(options)b::text[], %(payload_digest)b::text[], %(operation_digest)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest, nth)
ORDER BY nth;

-- name: queue_fronts() once
-- locks nothing; every queue with ready rows, by its first one
WITH RECURSIVE queues AS (
    (SELECT queue FROM tenure.ready WHERE lane = '' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM tenure.ready r WHERE r.queue > q.queue AND r.lane = '' ORDER BY r.queue LIMIT 1)
    FROM queues q WHERE q.queue IS NOT NULL
)
SELECT q.queue, f.priority, f.run_at
FROM queues q
CROSS JOIN LATERAL (
    SELECT r.priority, r.run_at FROM tenure.ready r WHERE r.queue = q.queue AND r.lane = ''
    ORDER BY r.priority DESC, r.run_at, r.job_id LIMIT 1
) f
ORDER BY f.priority DESC, f.run_at, q.queue;

-- name: resting_queues() once
-- locks nothing; every queue with parked rows
SELECT DISTINCT queue FROM tenure.resting WHERE status = 'queued' ORDER BY queue;

-- name: lease_publish(job_id, generation, command_id) each
-- writes lease: a publish of this command is part of this transaction
UPDATE tenure.lease l SET command_id = (%(command_id)b::uuid[])[array_position(%(job_id)b::uuid[], l.job_id)]
WHERE l.job_id = ANY(%(job_id)b::uuid[])
    AND l.generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], l.job_id)]
RETURNING l.job_id;

-- name: ready_front(queue, tenant, organization, kinds, wary, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice, from the very front of the queue
WITH picked AS MATERIALIZED (
    SELECT r.* FROM tenure.ready r
    WHERE r.queue = %(queue)b AND r.lane = ''
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND (NOT %(wary)b::boolean OR r.error_code IS DISTINCT FROM 'WORKER_LOST')
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
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

-- name: ready_next(queue, priorities, bounds, tenant, organization, kinds, wary, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice behind a worker's cursor, one probe per priority
WITH picked AS MATERIALIZED (
    SELECT r.*
    FROM unnest(%(priorities)b::integer[], %(bounds)b::bigint[]) WITH ORDINALITY AS cursor (priority, bound, nth)
    CROSS JOIN LATERAL (
        SELECT r.* FROM tenure.ready r
        WHERE r.queue = %(queue)b AND r.lane = '' AND r.priority = cursor.priority AND r.run_at >= cursor.bound
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND (NOT %(wary)b::boolean OR r.error_code IS DISTINCT FROM 'WORKER_LOST')
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
        ORDER BY r.run_at, r.job_id
        LIMIT %(limit)b
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
    EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM picked r
JOIN tenure.job j ON j.job_id = r.job_id AND j.tenant = r.tenant
LEFT JOIN tenure.authority a ON a.tenant = r.tenant
ORDER BY r.priority DESC, r.run_at, r.job_id;

-- name: ready_lost(queue, tenant, organization, kinds, limit) once
-- locks the ready rows it takes, skipping locked ones; only jobs whose last worker was lost, by an index of their own
WITH picked AS MATERIALIZED (
    SELECT r.* FROM tenure.ready r
    WHERE r.queue = %(queue)b AND r.lane = '' AND r.error_code = 'WORKER_LOST'
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
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

-- name: resting_front(queue, tenant, organization, kinds, limit) once
-- locks parked rows it takes, skipping locked ones; the single claim looks here too
WITH picked AS MATERIALIZED (
    SELECT r.* FROM tenure.resting r
    WHERE r.status = 'queued' AND r.queue = %(queue)b AND r.run_at <= tenure.now_us()
        AND (%(tenant)b::text IS NULL OR r.tenant = %(tenant)b)
        AND (%(organization)b::text IS NULL OR r.organization = %(organization)b)
        AND (%(kinds)b::text[] IS NULL OR r.kind = ANY(%(kinds)b))
        AND EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = r.tenant AND a.epoch = r.epoch AND NOT a.frozen)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
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
SELECT job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
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

-- name: announcement_save(worker_id, kinds, lifetime_us) once
-- writes announcement
INSERT INTO tenure.announcement (worker_id, kinds, expires_at)
VALUES (%(worker_id)b, %(kinds)b::text[], tenure.now_us() + %(lifetime_us)b)
ON CONFLICT (worker_id) DO UPDATE SET kinds = excluded.kinds, expires_at = excluded.expires_at;

-- name: announcement_delete(worker_id) once
-- writes announcement
DELETE FROM tenure.announcement WHERE worker_id = %(worker_id)b OR expires_at <= tenure.now_us();

-- name: ready_unclaimable(queue, limit) once
-- locks, of the rows at the front of a queue, those that no live worker knows or that are held, skipping locked ones
WITH front AS MATERIALIZED (
    SELECT job_id, tenant, kind, epoch FROM tenure.ready
    WHERE queue = %(queue)b AND lane = ''
    ORDER BY priority DESC, run_at, job_id
    LIMIT %(limit)b
),
judged AS MATERIALIZED (
    SELECT f.job_id, EXISTS (
        SELECT FROM tenure.announcement n WHERE n.expires_at > tenure.now_us() AND f.kind = ANY(n.kinds)
    ) AS known, EXISTS (
        SELECT FROM tenure.authority a WHERE a.tenant = f.tenant AND a.epoch = f.epoch AND NOT a.frozen
    ) AS admitted
    FROM front f
)
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.lane, r.priority, r.run_at, r.generation, r.attempt,
    r.attempts_max, r.epoch, r.error_code, r.error_message,
    CASE WHEN j.known THEN 'held' ELSE 'unannounced' END
FROM judged j
JOIN tenure.ready r ON r.job_id = j.job_id
WHERE NOT (j.known AND j.admitted)
FOR UPDATE OF r SKIP LOCKED;

-- name: resting_claimable(limit) once
-- locks parked rows that a live worker knows and that are not held, skipping locked ones
SELECT r.job_id, r.tenant, r.organization, r.kind, r.queue, r.lane, r.priority, r.run_at, r.generation, r.attempt,
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

-- name: effect_read(job_id) each
-- locks nothing: an effect is written only under its job's place
SELECT tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt::text, reason, settled_at, settled_by, ordinal, lookups, asked_at
FROM tenure.effect WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY job_id, created_at, name;

-- name: effect_save(tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) each
-- writes effect
INSERT INTO tenure.effect (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at)
SELECT tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt::json, reason, settled_at, settled_by, ordinal, lookups, asked_at
FROM unnest(%(tenant)b::text[], %(job_id)b::uuid[], %(name)b::text[], %(state)b::text[], %(operation_key)b::text[], %(request_digest)b::text[], %(attempt_id)b::uuid[], %(generation)b::bigint[], %(created_at)b::bigint[], %(begun_at)b::bigint[], %(deadline_at)b::bigint[], %(terms)b::text[], %(receipt)b::text[], %(reason)b::text[], %(settled_at)b::bigint[], %(settled_by)b::text[], %(ordinal)b::integer[], %(lookups)b::integer[], %(asked_at)b::bigint[])
    WITH ORDINALITY AS given (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at, nth)
ORDER BY nth
ON CONFLICT (tenant, job_id, name) DO UPDATE SET
    state = excluded.state, operation_key = excluded.operation_key, request_digest = excluded.request_digest, attempt_id = excluded.attempt_id, generation = excluded.generation, created_at = excluded.created_at, begun_at = excluded.begun_at, deadline_at = excluded.deadline_at, terms = excluded.terms, receipt = excluded.receipt, reason = excluded.reason, settled_at = excluded.settled_at, settled_by = excluded.settled_by, ordinal = excluded.ordinal, lookups = excluded.lookups, asked_at = excluded.asked_at;

-- name: effect_reserve(tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) each
-- writes effect where neither it nor its key is known; waits for another transaction that writes the same key
INSERT INTO tenure.effect (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at)
SELECT tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt::json, reason, settled_at, settled_by, ordinal, lookups, asked_at
FROM unnest(%(tenant)b::text[], %(job_id)b::uuid[], %(name)b::text[], %(state)b::text[], %(operation_key)b::text[], %(request_digest)b::text[], %(attempt_id)b::uuid[], %(generation)b::bigint[], %(created_at)b::bigint[], %(begun_at)b::bigint[], %(deadline_at)b::bigint[], %(terms)b::text[], %(receipt)b::text[], %(reason)b::text[], %(settled_at)b::bigint[], %(settled_by)b::text[], %(ordinal)b::integer[], %(lookups)b::integer[], %(asked_at)b::bigint[])
    WITH ORDINALITY AS given (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at, nth)
ORDER BY nth
ON CONFLICT DO NOTHING;

-- name: effect_owner(tenant, operation_key) each
-- locks nothing; whose an operation key is
SELECT e.tenant, e.operation_key, e.job_id, e.name
FROM unnest(%(tenant)b::text[], %(operation_key)b::text[]) AS given (tenant, operation_key)
JOIN tenure.effect e USING (tenant, operation_key);

-- name: intent_insert(tenant, operation_key, attempt_id, job_id, at) each
-- writes intent; a second one of the same attempt in the same microsecond says nothing new
INSERT INTO tenure.intent (tenant, operation_key, attempt_id, job_id, at)
SELECT tenant, operation_key, attempt_id, job_id, at
FROM unnest(%(tenant)b::text[], %(operation_key)b::text[], %(attempt_id)b::uuid[], %(job_id)b::uuid[], %(at)b::bigint[])
    WITH ORDINALITY AS given (tenant, operation_key, attempt_id, job_id, at, nth)
ORDER BY nth
ON CONFLICT DO NOTHING;

-- name: intent_find(operation_key, attempt_id) once
-- locks nothing; the jobs whose intent this attempt wrote
SELECT DISTINCT tenant, job_id FROM tenure.intent
WHERE operation_key = %(operation_key)b AND attempt_id = %(attempt_id)b;

-- name: evidence_save(evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used) each
-- writes evidence
INSERT INTO tenure.evidence (evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used)
SELECT evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt::json, reason, at, contradicts, used
FROM unnest(%(evidence_id)b::uuid[], %(tenant)b::text[], %(job_id)b::uuid[], %(operation_key)b::text[], %(attempt_id)b::uuid[], %(kind)b::text[], %(receipt)b::text[], %(reason)b::text[], %(at)b::bigint[], %(contradicts)b::boolean[], %(used)b::boolean[])
    WITH ORDINALITY AS given (evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used, nth)
ORDER BY nth
ON CONFLICT (evidence_id) DO UPDATE SET contradicts = excluded.contradicts, used = excluded.used;

-- name: evidence_read(job_id) each
-- locks nothing; oldest first
SELECT evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt::text, reason, at, contradicts, used
FROM tenure.evidence WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY at, evidence_id;

-- name: escalation_read(job_id) each
-- locks nothing: an escalation is written only under its job's place
SELECT job_id, escalated_at, reason FROM tenure.escalation WHERE job_id = ANY(%(job_id)b::uuid[]);

-- name: escalation_save(job_id, tenant, escalated_at, reason) each
-- writes escalation
INSERT INTO tenure.escalation (job_id, tenant, escalated_at, reason)
SELECT job_id, tenant, escalated_at, reason
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(escalated_at)b::bigint[], %(reason)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, escalated_at, reason, nth)
ORDER BY nth
ON CONFLICT (job_id, tenant) DO UPDATE SET escalated_at = excluded.escalated_at, reason = excluded.reason;

-- name: escalation_delete(job_id) each
-- writes escalation
DELETE FROM tenure.escalation WHERE job_id = ANY(%(job_id)b::uuid[]);

-- name: candidate_list(tenant, organization, project, patient, limit) once
-- locks nothing; what a sweep of one tenant, organization and project looks at, oldest first; a patient one leaves out
-- what waits for a person and has no new evidence
SELECT j.job_id FROM tenure.job j
JOIN (
    SELECT job_id FROM tenure.resting WHERE status IN ('indeterminate', 'timed_out')
    UNION
    SELECT job_id FROM tenure.lease WHERE expires_at - (SELECT tenure.now_us()) <= 0
    UNION
    SELECT o.job_id FROM tenure.effect e JOIN tenure.outcome o ON o.job_id = e.job_id WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT o.job_id FROM tenure.evidence v
    JOIN tenure.escalation s ON s.job_id = v.job_id JOIN tenure.outcome o ON o.job_id = v.job_id
    WHERE v.contradicts
) c ON c.job_id = j.job_id
WHERE j.tenant = %(tenant)b AND j.organization = %(organization)b AND j.project = %(project)b
    AND NOT (
        %(patient)b::boolean AND EXISTS (SELECT 1 FROM tenure.escalation s WHERE s.job_id = j.job_id)
        AND NOT EXISTS (SELECT 1 FROM tenure.evidence v WHERE v.job_id = j.job_id AND NOT v.used AND NOT v.contradicts)
    )
ORDER BY j.created_at, j.job_id
LIMIT %(limit)b;

-- name: candidate_scopes(tenant) once
-- locks nothing; every scope that has candidates
SELECT DISTINCT j.tenant, j.organization, j.project FROM tenure.job j
JOIN (
    SELECT job_id FROM tenure.resting WHERE status IN ('indeterminate', 'timed_out')
    UNION
    SELECT job_id FROM tenure.lease WHERE expires_at - (SELECT tenure.now_us()) <= 0
    UNION
    SELECT o.job_id FROM tenure.effect e JOIN tenure.outcome o ON o.job_id = e.job_id WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT o.job_id FROM tenure.evidence v
    JOIN tenure.escalation s ON s.job_id = v.job_id JOIN tenure.outcome o ON o.job_id = v.job_id
    WHERE v.contradicts
) c ON c.job_id = j.job_id
WHERE %(tenant)b::text IS NULL OR j.tenant = %(tenant)b
ORDER BY j.tenant, j.organization, j.project;

-- name: event_insert(job_id, tenant, name, at, generation, status, actor, data, command_id) each
-- writes event
INSERT INTO tenure.event (job_id, tenant, name, at, generation, status, actor, data, command_id)
SELECT job_id, tenant, name, at, generation, status, actor, data::json, command_id
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(name)b::text[], %(at)b::bigint[], %(generation)b::bigint[], %(status)b::text[], %(actor)b::text[], %(data)b::text[], %(command_id)b::uuid[])
    WITH ORDINALITY AS given (job_id, tenant, name, at, generation, status, actor, data, command_id, nth)
ORDER BY nth;

-- name: event_known(job_id, command_id) each
-- locks nothing; the jobs whose trail has this command already
SELECT DISTINCT e.job_id FROM unnest(%(job_id)b::uuid[], %(command_id)b::uuid[]) AS given (job_id, command_id)
JOIN tenure.event e USING (job_id, command_id);

-- name: event_read(job_id) each
-- locks nothing; in the order written
SELECT name, at, generation, status, actor, data::text, command_id FROM tenure.event
WHERE job_id = ANY(%(job_id)b::uuid[]) ORDER BY event_id;
