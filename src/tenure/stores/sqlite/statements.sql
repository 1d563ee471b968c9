-- Every statement of the SQLite store, in the order of its PostgreSQL twin. `each` statements run once per row.
-- The writer holds the database's only write lock, so a row that is read here is locked.

-- name: clock() once
-- reads the store's clock
SELECT :now;

-- name: authority_ensure(tenant) each
-- writes authority where the tenant is new
INSERT INTO tenure_authority (tenant) VALUES (:tenant) ON CONFLICT DO NOTHING;

-- name: authority_read(tenant) each
-- locks nothing; epoch, freezes and the clock
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_authority a WHERE a.tenant = :tenant;

-- name: authority_lock(job_id) each
-- locks the authority rows of these jobs' tenants, shared, in order; the first lock of every fenced write
SELECT a.tenant FROM tenure_authority a JOIN tenure_job j ON j.tenant = a.tenant WHERE j.job_id = :job_id;

-- name: place_lock(job_id) each
-- locks the job's place, whichever of the five it is; no row where it moved meanwhile: look again
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_place p
JOIN tenure_job j ON j.job_id = p.job_id
LEFT JOIN tenure_authority a ON a.tenant = p.tenant
WHERE p.job_id = :job_id;

-- name: place_lock_free(job_id) each
-- locks leases that nobody else holds locked; renewals never wait for a publish
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_place p
JOIN tenure_job j ON j.job_id = p.job_id
LEFT JOIN tenure_authority a ON a.tenant = p.tenant
WHERE p.place = 'lease' AND p.job_id = :job_id;

-- name: place_read(job_id) each
-- locks nothing
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_place p
JOIN tenure_job j ON j.job_id = p.job_id
LEFT JOIN tenure_authority a ON a.tenant = p.tenant
WHERE p.job_id = :job_id;

-- name: body_lock(job_id) each
-- locks the body row: moves out of a terminal place take it first
SELECT job_id FROM tenure_job WHERE job_id = :job_id;

-- name: place_list(tenant, organization, project, status, queue, after, limit) once
-- locks nothing; newest last, after the given id
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress, p.parked,
    p.result, p.error_code, p.error_message, p.finished_at, p.command_id,
    j.organization, j.project, j.idempotency_key, j.subject, j.kind, j.kind_version, j.queue, j.priority, j.payload,
    j.backoff_us, j.lease_us, j.scheduled_at, j.created_at, j.on_reconciled, j.on_declined, j.options, j.payload_digest,
    j.operation_digest,
    COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_place p
JOIN tenure_job j ON j.job_id = p.job_id
LEFT JOIN tenure_authority a ON a.tenant = p.tenant
WHERE (:tenant IS NULL OR j.tenant = :tenant)
    AND (:organization IS NULL OR j.organization = :organization)
    AND (:project IS NULL OR j.project = :project)
    AND (:status IS NULL OR p.status IN (SELECT value FROM json_each(:status)))
    AND (:queue IS NULL OR j.queue = :queue)
    AND (:after IS NULL OR j.job_id > :after)
ORDER BY j.job_id
LIMIT :limit;

-- name: ready_delete(job_id, generation) each
-- writes ready: the row must still have this generation
DELETE FROM tenure_ready WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: deferred_delete(job_id, generation) each
-- writes deferred: the row must still have this generation
DELETE FROM tenure_deferred WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: lease_delete(job_id, generation) each
-- writes lease: the row must still have this generation
DELETE FROM tenure_lease WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: resting_delete(job_id, generation) each
-- writes resting: the row must still have this generation
DELETE FROM tenure_resting WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: outcome_delete(job_id, generation) each
-- writes outcome: the row must still have this generation
DELETE FROM tenure_outcome WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: ready_insert(job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes ready
INSERT INTO tenure_ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
VALUES (:job_id, :tenant, :organization, :kind, :queue, :lane, :priority, :run_at, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message);

-- name: deferred_insert(job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes deferred
INSERT INTO tenure_deferred (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
VALUES (:job_id, :tenant, :organization, :kind, :queue, :lane, :priority, :run_at, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message);

-- name: lease_insert(job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message) each
-- writes lease
INSERT INTO tenure_lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message)
VALUES (:job_id, :tenant, :status, :worker_id, :attempt_id, :claim_id, :expires_at, :lease_us, :claimed_at, :run_at, :generation, :attempt, :attempts_max, :epoch, :cancel_requested_at, :cancel_reason, :progress, :error_code, :error_message);

-- name: lease_update(job_id, generation, status, expires_at, cancel_requested_at, cancel_reason, progress) each
-- writes lease in place; no index holds what it changes
UPDATE tenure_lease SET status = :status, expires_at = :expires_at, cancel_requested_at = :cancel_requested_at, cancel_reason = :cancel_reason, progress = :progress
WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: resting_insert(job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes resting
INSERT INTO tenure_resting (job_id, tenant, status, parked, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
VALUES (:job_id, :tenant, :status, :parked, :organization, :kind, :queue, :lane, :priority, :run_at, :generation, :attempt, :attempts_max, :epoch, :cancel_requested_at, :cancel_reason, :error_code, :error_message, :finished_at);

-- name: outcome_insert(job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes outcome
INSERT INTO tenure_outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
VALUES (:job_id, :tenant, :status, :run_at, :generation, :attempt, :attempts_max, :epoch, :result, :cancel_requested_at, :cancel_reason, :error_code, :error_message, :finished_at);

-- name: job_key_reserve(tenant, project, idempotency_key, job_id, organization, kind, payload_digest) each
-- writes job_key where the key is new; waits for another transaction that reserves the same key
INSERT INTO tenure_job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
VALUES (:tenant, :project, :idempotency_key, :job_id, :organization, :kind, :payload_digest)
ON CONFLICT DO NOTHING
RETURNING job_id;

-- name: job_key_read(tenant, project, idempotency_key) each
-- locks nothing
SELECT tenant, project, idempotency_key, job_id, organization, kind, payload_digest FROM tenure_job_key
WHERE tenant = :tenant AND project = :project AND idempotency_key = :idempotency_key;

-- name: job_insert(job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest) each
-- writes job: the immutable body
INSERT INTO tenure_job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest)
VALUES (:job_id, :tenant, :organization, :project, :idempotency_key, :subject, :kind, :kind_version, :queue, :priority, :payload, :attempts_max, :backoff_us, :lease_us, :scheduled_at, :created_at, :on_reconciled, :on_declined, :options, :payload_digest, :operation_digest);

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

-- name: lease_publish(job_id, generation, command_id) each
-- writes lease: a publish of this command is part of this transaction
UPDATE tenure_lease SET command_id = :command_id WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: ready_front(queue, tenant, organization, kinds, wary, limit) once
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
    AND (NOT :wary OR r.error_code IS NOT 'WORKER_LOST')
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: ready_next(queue, priorities, bounds, tenant, organization, kinds, wary, limit) once
-- locks the ready rows it takes, skipping locked ones; the claim's choice behind a worker's cursor, one probe per priority
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
    AND EXISTS (
        SELECT 1 FROM json_each(:priorities) given JOIN json_each(:bounds) bound ON bound.key = given.key
        WHERE given.value = r.priority AND r.run_at >= bound.value
    )
    AND (:tenant IS NULL OR r.tenant = :tenant)
    AND (:organization IS NULL OR r.organization = :organization)
    AND (:kinds IS NULL OR r.kind IN (SELECT value FROM json_each(:kinds)))
    AND (NOT :wary OR r.error_code IS NOT 'WORKER_LOST')
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
ORDER BY r.priority DESC, r.run_at, r.job_id
LIMIT :limit;

-- name: ready_lost(queue, tenant, organization, kinds, limit) once
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
WHERE r.queue = :queue AND r.lane = '' AND r.error_code = 'WORKER_LOST'
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

-- name: effect_read(job_id) each
-- locks nothing: an effect is written only under its job's place
SELECT tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at
FROM tenure_effect WHERE job_id = :job_id ORDER BY created_at, name;

-- name: effect_save(tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) each
-- writes effect
INSERT INTO tenure_effect (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at)
VALUES (:tenant, :job_id, :name, :state, :operation_key, :request_digest, :attempt_id, :generation, :created_at, :begun_at, :deadline_at, :terms, :receipt, :reason, :settled_at, :settled_by, :ordinal, :lookups, :asked_at)
ON CONFLICT (tenant, job_id, name) DO UPDATE SET
    state = excluded.state, operation_key = excluded.operation_key, request_digest = excluded.request_digest, attempt_id = excluded.attempt_id, generation = excluded.generation, created_at = excluded.created_at, begun_at = excluded.begun_at, deadline_at = excluded.deadline_at, terms = excluded.terms, receipt = excluded.receipt, reason = excluded.reason, settled_at = excluded.settled_at, settled_by = excluded.settled_by, ordinal = excluded.ordinal, lookups = excluded.lookups, asked_at = excluded.asked_at;

-- name: effect_reserve(tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) each
-- writes effect where neither it nor its key is known; waits for another transaction that writes the same key
INSERT INTO tenure_effect (tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at)
VALUES (:tenant, :job_id, :name, :state, :operation_key, :request_digest, :attempt_id, :generation, :created_at, :begun_at, :deadline_at, :terms, :receipt, :reason, :settled_at, :settled_by, :ordinal, :lookups, :asked_at)
ON CONFLICT DO NOTHING;

-- name: effect_owner(tenant, operation_key) each
-- locks nothing; whose an operation key is
SELECT tenant, operation_key, job_id, name FROM tenure_effect WHERE tenant = :tenant AND operation_key = :operation_key;

-- name: intent_insert(tenant, operation_key, attempt_id, job_id, at) each
-- writes intent; a second one of the same attempt in the same microsecond says nothing new
INSERT INTO tenure_intent (tenant, operation_key, attempt_id, job_id, at)
VALUES (:tenant, :operation_key, :attempt_id, :job_id, :at)
ON CONFLICT DO NOTHING;

-- name: intent_find(operation_key, attempt_id) once
-- locks nothing; the jobs whose intent this attempt wrote
SELECT DISTINCT tenant, job_id FROM tenure_intent WHERE operation_key = :operation_key AND attempt_id = :attempt_id;

-- name: evidence_save(evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used) each
-- writes evidence
INSERT INTO tenure_evidence (evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used)
VALUES (:evidence_id, :tenant, :job_id, :operation_key, :attempt_id, :kind, :receipt, :reason, :at, :contradicts, :used)
ON CONFLICT (evidence_id) DO UPDATE SET contradicts = excluded.contradicts, used = excluded.used;

-- name: evidence_read(job_id) each
-- locks nothing; oldest first
SELECT evidence_id, tenant, job_id, operation_key, attempt_id, kind, receipt, reason, at, contradicts, used
FROM tenure_evidence WHERE job_id = :job_id ORDER BY at, evidence_id;

-- name: escalation_read(job_id) each
-- locks nothing: an escalation is written only under its job's place
SELECT job_id, escalated_at, reason FROM tenure_escalation WHERE job_id = :job_id;

-- name: escalation_save(job_id, tenant, escalated_at, reason) each
-- writes escalation
INSERT INTO tenure_escalation (job_id, tenant, escalated_at, reason)
VALUES (:job_id, :tenant, :escalated_at, :reason)
ON CONFLICT (job_id, tenant) DO UPDATE SET escalated_at = excluded.escalated_at, reason = excluded.reason;

-- name: escalation_delete(job_id) each
-- writes escalation
DELETE FROM tenure_escalation WHERE job_id = :job_id;

-- name: candidate_list(tenant, organization, project, patient, limit) once
-- locks nothing; what a sweep of one tenant, organization and project looks at, oldest first; a patient one leaves out
-- what waits for a person and has no new evidence
SELECT j.job_id FROM tenure_job j
JOIN (
    SELECT job_id FROM tenure_resting WHERE status IN ('indeterminate', 'timed_out')
    UNION
    SELECT job_id FROM tenure_lease WHERE expires_at - :now <= 0
    UNION
    SELECT o.job_id FROM tenure_effect e JOIN tenure_outcome o ON o.job_id = e.job_id WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT o.job_id FROM tenure_evidence v
    JOIN tenure_escalation s ON s.job_id = v.job_id JOIN tenure_outcome o ON o.job_id = v.job_id
    WHERE v.contradicts = 1
) c ON c.job_id = j.job_id
WHERE j.tenant = :tenant AND j.organization = :organization AND j.project = :project
    AND NOT (
        :patient AND EXISTS (SELECT 1 FROM tenure_escalation s WHERE s.job_id = j.job_id)
        AND NOT EXISTS (SELECT 1 FROM tenure_evidence v WHERE v.job_id = j.job_id AND v.used = 0 AND v.contradicts = 0)
    )
ORDER BY j.created_at, j.job_id
LIMIT :limit;

-- name: candidate_scopes(tenant) once
-- locks nothing; every scope that has candidates
SELECT DISTINCT j.tenant, j.organization, j.project FROM tenure_job j
JOIN (
    SELECT job_id FROM tenure_resting WHERE status IN ('indeterminate', 'timed_out')
    UNION
    SELECT job_id FROM tenure_lease WHERE expires_at - :now <= 0
    UNION
    SELECT o.job_id FROM tenure_effect e JOIN tenure_outcome o ON o.job_id = e.job_id WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT o.job_id FROM tenure_evidence v
    JOIN tenure_escalation s ON s.job_id = v.job_id JOIN tenure_outcome o ON o.job_id = v.job_id
    WHERE v.contradicts = 1
) c ON c.job_id = j.job_id
WHERE :tenant IS NULL OR j.tenant = :tenant
ORDER BY j.tenant, j.organization, j.project;

-- name: event_insert(job_id, tenant, name, at, generation, status, actor, data, command_id) each
-- writes event
INSERT INTO tenure_event (job_id, tenant, name, at, generation, status, actor, data, command_id)
VALUES (:job_id, :tenant, :name, :at, :generation, :status, :actor, :data, :command_id);

-- name: event_known(job_id, command_id) each
-- locks nothing; the jobs whose trail has this command already
SELECT job_id FROM tenure_event WHERE job_id = :job_id AND command_id = :command_id LIMIT 1;

-- name: event_read(job_id) each
-- locks nothing; in the order written
SELECT name, at, generation, status, actor, data, command_id FROM tenure_event WHERE job_id = :job_id ORDER BY event_id;
