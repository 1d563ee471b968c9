-- Every statement of the PostgreSQL store, in the order of its SQLite twin. `each` statements take one array per
-- parameter. `now` is read after the rows are locked: the locking part is materialized first.
-- Leases that have run out are looked for with `expires_at - now <= 0`, which no index can serve. With `expires_at <= now`
-- and an index for it, empty when statistics were taken, hot statements begin with that index instead of the ids that they
-- are given, and cost two to six times as much.

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
-- locks nothing; epoch, freezes, the clock, and the queues that take no new jobs, as JSON
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us(),
    (SELECT COALESCE(json_agg(q.name)::text, '[]') FROM tenure.queue q WHERE q.draining_at IS NOT NULL)
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
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue = ANY(ARRAY(SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL)) THEN 'paused' ELSE p.parked END,
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
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue = ANY(ARRAY(SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL)) THEN 'paused' ELSE p.parked END,
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
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue = ANY(ARRAY(SELECT q.name FROM tenure.queue q WHERE q.paused_at IS NOT NULL)) THEN 'paused' ELSE p.parked END,
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

-- name: lease_lock(tenants, job_ids) once
-- locks the authority rows of these tenants, shared, and then the leases, each in order; what is asked next sees everything
-- that was written under them before
WITH shared AS MATERIALIZED (
    SELECT a.tenant FROM tenure.authority a WHERE a.tenant = ANY(%(tenants)b::text[]) ORDER BY a.tenant FOR SHARE
)
SELECT l.job_id FROM tenure.lease l
WHERE l.job_id = ANY(%(job_ids)b::uuid[]) AND (SELECT count(*) FROM shared) >= 0
ORDER BY l.job_id FOR UPDATE;

-- name: complete_batch(job_id, tenant, generation, worker_id, attempt_id, result, command_id) each
-- writes lease, outcome, event: `lease.check_fence` and `moves.complete` for running jobs without an open effect and without
-- a pending cancellation, whose leases were locked before. A job that it does not give back is left as it was. See
-- procedures/complete_batch.py.
WITH held AS MATERIALIZED (
    SELECT l.*, l.ctid AS spot, array_position(%(job_id)b::uuid[], l.job_id) AS nth
    FROM tenure.lease l WHERE l.job_id = ANY(%(job_id)b::uuid[])
),
clock AS MATERIALIZED (SELECT tenure.now_us() AS now),
plain AS MATERIALIZED (
    SELECT h.job_id, h.tenant, h.run_at, h.generation, h.attempt, h.attempts_max, h.epoch, h.nth, h.spot, clock.now
    FROM held h
    CROSS JOIN clock
    WHERE h.generation = (%(generation)b::bigint[])[h.nth] AND h.attempt_id = (%(attempt_id)b::uuid[])[h.nth]
        AND h.worker_id = (%(worker_id)b::text[])[h.nth] AND h.tenant = (%(tenant)b::text[])[h.nth]
        AND h.status = 'running' AND h.cancel_requested_at IS NULL AND h.expires_at - clock.now > 0
        AND (SELECT a.epoch = h.epoch AND NOT a.frozen FROM tenure.authority a WHERE a.tenant = h.tenant)
        AND NOT EXISTS (SELECT FROM tenure.meta WHERE key = 'frozen')
        AND (SELECT count(*) FROM tenure.effect e WHERE e.job_id = h.job_id AND e.state IN ('pending', 'unknown')) = 0
),
gone AS (
    DELETE FROM tenure.lease WHERE ctid = ANY(ARRAY(SELECT p.spot FROM plain p))
),
ended AS (
    INSERT INTO tenure.outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, finished_at)
    SELECT p.job_id, p.tenant, 'completed', p.run_at, p.generation, p.attempt, p.attempts_max, p.epoch,
        (%(result)b::text[])[p.nth]::json, p.now
    FROM plain p ORDER BY p.nth
),
noted AS (
    INSERT INTO tenure.event (job_id, tenant, name, at, generation, status, command_id)
    SELECT p.job_id, p.tenant, 'completed', p.now, p.generation, 'completed', (%(command_id)b::uuid[])[p.nth]
    FROM plain p ORDER BY p.nth
)
SELECT p.job_id FROM plain p;

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

-- name: ready_insert(job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes ready; the lane is decided here, by the queue's setting
INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT job_id, tenant, organization, kind, queue, CASE WHEN queue = ANY(ARRAY(SELECT name FROM tenure.queue WHERE fair)) THEN tenant ELSE '' END, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message, nth)
ORDER BY nth;

-- name: deferred_insert(job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes deferred
INSERT INTO tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(error_code)b::text[], %(error_message)b::text[])
    WITH ORDINALITY AS given (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message, nth)
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

-- name: resting_insert(job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes resting
INSERT INTO tenure.resting (job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
SELECT job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(status)b::text[], %(parked)b::text[], %(organization)b::text[], %(kind)b::text[], %(queue)b::text[], %(priority)b::integer[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(cancel_requested_at)b::bigint[], %(cancel_reason)b::text[], %(error_code)b::text[], %(error_message)b::text[], %(finished_at)b::bigint[])
    WITH ORDINALITY AS given (job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at, nth)
ORDER BY nth;

-- name: outcome_insert(job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes outcome
INSERT INTO tenure.outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
SELECT job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result::json, cancel_requested_at, cancel_reason, error_code, error_message, finished_at
FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(status)b::text[], %(run_at)b::bigint[], %(generation)b::bigint[], %(attempt)b::integer[], %(attempts_max)b::integer[], %(epoch)b::bigint[], %(result)b::text[], %(cancel_requested_at)b::bigint[], %(cancel_reason)b::text[], %(error_code)b::text[], %(error_message)b::text[], %(finished_at)b::bigint[])
    WITH ORDINALITY AS given (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at, nth)
ORDER BY nth;

-- name: job_key_reserve(tenant, project, idempotency_key, job_id, organization, kind, payload_digest) each
-- writes job_key where the key is new, in the order given; waits for another transaction that reserves the same key
INSERT INTO tenure.job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
SELECT tenant, project, idempotency_key, job_id, organization, kind, payload_digest
FROM unnest(%(tenant)b::text[], %(project)b::text[], %(idempotency_key)b::text[], %(job_id)b::uuid[], %(organization)b::text[], %(kind)b::text[], %(payload_digest)b::text[])
    WITH ORDINALITY AS given (tenant, project, idempotency_key, job_id, organization, kind, payload_digest, nth)
ORDER BY nth
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
    AS given (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest);

-- name: lease_publish(job_id, generation, command_id) each
-- writes lease: a publish of this command is part of this transaction
UPDATE tenure.lease l SET command_id = (%(command_id)b::uuid[])[array_position(%(job_id)b::uuid[], l.job_id)]
WHERE l.job_id = ANY(%(job_id)b::uuid[])
    AND l.generation = (%(generation)b::bigint[])[array_position(%(job_id)b::uuid[], l.job_id)]
RETURNING l.job_id;

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
-- locks nothing: an escalation is written only under its job's place, and so is a suspicion while workers run
SELECT job_id, escalated_at, reason, NULL::bigint, NULL::bigint, NULL::bigint FROM tenure.escalation
WHERE job_id = ANY(%(job_id)b::uuid[])
UNION ALL
SELECT job_id, NULL, NULL, marked_at, since, generation FROM tenure.suspect
WHERE job_id = ANY(%(job_id)b::uuid[]);

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
