-- Every statement of the SQLite store, in the order of its PostgreSQL twin. `each` statements run once per row.
-- The writer holds the database's only write lock, so a row that is read here is locked.
-- A statement may have several parts, each ended by a semicolon at the end of its line: a part is run for all rows
-- before the next one, and the answer is that of the last part that gives rows.
-- Leases that have run out are looked for with `expires_at - now <= 0`, as in the twin: no index can serve that, and so
-- none is made that a hot statement, which finds its leases by id, could begin with.

-- name: clock() once
-- reads the store's clock
SELECT :now;

-- name: authority_ensure(tenant) each
-- writes authority where the tenant is new
INSERT INTO tenure_authority (tenant) VALUES (:tenant) ON CONFLICT DO NOTHING;

-- name: authority_read(tenant) each
-- locks nothing; epoch, freezes, the clock, and the queues that take no new jobs, as JSON
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now,
    (SELECT json_group_array(q.name) FROM tenure_queue q WHERE q.draining_at IS NOT NULL)
FROM tenure_authority a WHERE a.tenant = :tenant;

-- name: authority_lock(job_id) each
-- locks the authority rows of these jobs' tenants, shared, in order; the first lock of every fenced write
SELECT a.tenant FROM tenure_authority a JOIN tenure_job j ON j.tenant = a.tenant WHERE j.job_id = :job_id;

-- name: place_lock(job_id) each
-- locks the job's place, whichever of the five it is; no row where it moved meanwhile: look again
SELECT p.place, p.job_id, p.tenant, p.status, p.generation, p.attempt, p.attempts_max, p.epoch, p.run_at, p.worker_id,
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue IN (SELECT q.name FROM tenure_queue q WHERE q.paused_at IS NOT NULL) THEN 'paused' ELSE p.parked END,
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
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue IN (SELECT q.name FROM tenure_queue q WHERE q.paused_at IS NOT NULL) THEN 'paused' ELSE p.parked END,
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
    p.attempt_id, p.expires_at, p.lease_us, p.claimed_at, p.cancel_requested_at, p.cancel_reason, p.progress,
    CASE WHEN p.status = 'queued' AND j.queue IN (SELECT q.name FROM tenure_queue q WHERE q.paused_at IS NOT NULL) THEN 'paused' ELSE p.parked END,
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

-- name: lease_lock(tenants, job_ids) once
-- locks the authority rows of these tenants, shared, and then the leases, each in order; here the writer's lock is enough
SELECT NULL WHERE 0;

-- name: complete_batch(job_id, tenant, generation, worker_id, attempt_id, result, command_id) each
-- writes lease, outcome, event: `lease.check_fence` and `moves.complete` for running jobs without an open effect and without
-- a pending cancellation, whose leases were locked before. A job that it does not give back is left as it was. See
-- procedures/complete_batch.py.
INSERT INTO tenure_outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, finished_at)
SELECT l.job_id, l.tenant, 'completed', l.run_at, l.generation, l.attempt, l.attempts_max, l.epoch, :result, :now
FROM tenure_lease l
JOIN tenure_authority a ON a.tenant = l.tenant AND a.epoch = l.epoch AND a.frozen = 0
WHERE l.job_id = :job_id AND l.tenant = :tenant AND l.generation = :generation AND l.worker_id = :worker_id
    AND l.attempt_id = :attempt_id
    AND l.status = 'running' AND l.cancel_requested_at IS NULL AND l.expires_at > :now
    AND NOT EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen')
    AND NOT EXISTS (SELECT 1 FROM tenure_effect e WHERE e.job_id = l.job_id AND e.state IN ('pending', 'unknown'));

INSERT INTO tenure_event (job_id, tenant, name, at, generation, status, command_id)
SELECT o.job_id, o.tenant, 'completed', o.finished_at, o.generation, 'completed', :command_id
FROM tenure_outcome o JOIN tenure_lease l ON l.job_id = o.job_id
WHERE o.job_id = :job_id;

DELETE FROM tenure_lease WHERE job_id = :job_id AND EXISTS (SELECT 1 FROM tenure_outcome o WHERE o.job_id = :job_id)
RETURNING job_id;

-- name: resting_delete(job_id, generation) each
-- writes resting: the row must still have this generation
DELETE FROM tenure_resting WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: outcome_delete(job_id, generation) each
-- writes outcome: the row must still have this generation
DELETE FROM tenure_outcome WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: ready_insert(job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes ready; the lane is decided here, by the queue's setting
INSERT INTO tenure_ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
SELECT job_id, tenant, organization, kind, queue, CASE WHEN EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = given.queue AND q.fair = 1) THEN tenant ELSE '' END, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message
FROM (SELECT :job_id AS job_id, :tenant AS tenant, :organization AS organization, :kind AS kind, :queue AS queue, :priority AS priority, :run_at AS run_at, :generation AS generation, :attempt AS attempt, :attempts_max AS attempts_max, :epoch AS epoch, :error_code AS error_code, :error_message AS error_message) AS given;

-- name: deferred_insert(job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message) each
-- writes deferred
INSERT INTO tenure_deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, error_code, error_message)
VALUES (:job_id, :tenant, :organization, :kind, :queue, :priority, :run_at, :generation, :attempt, :attempts_max, :epoch, :error_code, :error_message);

-- name: lease_insert(job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message) each
-- writes lease
INSERT INTO tenure_lease (job_id, tenant, status, worker_id, attempt_id, claim_id, expires_at, lease_us, claimed_at, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, progress, error_code, error_message)
VALUES (:job_id, :tenant, :status, :worker_id, :attempt_id, :claim_id, :expires_at, :lease_us, :claimed_at, :run_at, :generation, :attempt, :attempts_max, :epoch, :cancel_requested_at, :cancel_reason, :progress, :error_code, :error_message);

-- name: lease_update(job_id, generation, status, expires_at, cancel_requested_at, cancel_reason, progress) each
-- writes lease in place; no index holds what it changes
UPDATE tenure_lease SET status = :status, expires_at = :expires_at, cancel_requested_at = :cancel_requested_at, cancel_reason = :cancel_reason, progress = :progress
WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

-- name: resting_insert(job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes resting
INSERT INTO tenure_resting (job_id, tenant, status, parked, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
VALUES (:job_id, :tenant, :status, :parked, :organization, :kind, :queue, :priority, :run_at, :generation, :attempt, :attempts_max, :epoch, :cancel_requested_at, :cancel_reason, :error_code, :error_message, :finished_at);

-- name: outcome_insert(job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at) each
-- writes outcome
INSERT INTO tenure_outcome (job_id, tenant, status, run_at, generation, attempt, attempts_max, epoch, result, cancel_requested_at, cancel_reason, error_code, error_message, finished_at)
VALUES (:job_id, :tenant, :status, :run_at, :generation, :attempt, :attempts_max, :epoch, :result, :cancel_requested_at, :cancel_reason, :error_code, :error_message, :finished_at);

-- name: job_key_reserve(tenant, project, idempotency_key, job_id, organization, kind, payload_digest) each
-- writes job_key where the key is new, in the order given; waits for another transaction that reserves the same key
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

-- name: lease_publish(job_id, generation, command_id) each
-- writes lease: a publish of this command is part of this transaction
UPDATE tenure_lease SET command_id = :command_id WHERE job_id = :job_id AND generation = :generation RETURNING job_id;

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
-- locks nothing: an escalation is written only under its job's place, and so is a suspicion while workers run
SELECT job_id, escalated_at, reason, NULL, NULL, NULL FROM tenure_escalation WHERE job_id = :job_id
UNION ALL
SELECT job_id, NULL, NULL, marked_at, since, generation FROM tenure_suspect WHERE job_id = :job_id;

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
