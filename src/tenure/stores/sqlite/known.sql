-- What a producer is told of a job that exists already.

-- name: job_key_known(tenant, project, idempotency_key, organization, kind, payload_digest) each
-- locks nothing; the jobs that have these keys, each with the first thing in which it differs from what is presented
SELECT tenant, project, idempotency_key, job_id, CASE
        WHEN organization <> :organization THEN 'organization'
        WHEN kind <> :kind THEN 'kind'
        WHEN payload_digest <> :payload_digest THEN 'payload'
    END
FROM tenure_job_key WHERE tenant = :tenant AND project = :project AND idempotency_key = :idempotency_key;

-- name: place_known(job_id, payload_digest) each
-- locks nothing; as place_read, of the jobs whose payload has the digest presented
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
WHERE p.job_id = :job_id AND j.payload_digest = :payload_digest;

-- name: effect_known(job_id, payload_digest) each
-- locks nothing; as effect_read, of the jobs whose payload has the digest presented
SELECT tenant, job_id, name, state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms, receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at
FROM tenure_effect WHERE job_id = :job_id
    AND EXISTS (SELECT 1 FROM tenure_job j WHERE j.job_id = :job_id AND j.payload_digest = :payload_digest) ORDER BY created_at, name;

-- name: escalation_known(job_id, payload_digest) each
-- locks nothing; as escalation_read, of the jobs whose payload has the digest presented
SELECT job_id, escalated_at, reason, NULL, NULL, NULL FROM tenure_escalation WHERE job_id = :job_id
    AND EXISTS (SELECT 1 FROM tenure_job j WHERE j.job_id = :job_id AND j.payload_digest = :payload_digest)
UNION ALL
SELECT job_id, NULL, NULL, marked_at, since, generation FROM tenure_suspect WHERE job_id = :job_id
    AND EXISTS (SELECT 1 FROM tenure_job j WHERE j.job_id = :job_id AND j.payload_digest = :payload_digest);
