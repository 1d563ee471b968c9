-- One job in one statement, for a caller's transaction, where every round trip is the caller's time.

-- name: job_create(job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, on_reconciled, on_declined, options, payload_digest, operation_digest, epoch) once
-- writes authority (where the tenant is new), job_key, job, and ready or deferred; nothing where the key is known, the
-- queue is being drained, or the tenant has another epoch than the one that the digest was made with: then no row comes
-- back. The key comes last: its absence is what tells the others that the job is new. They take the instant from the
-- body, so that it is one.
INSERT INTO tenure_authority (tenant) VALUES (:tenant) ON CONFLICT DO NOTHING;
INSERT INTO tenure_job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest)
SELECT :job_id, :tenant, :organization, :project, :idempotency_key, :subject, :kind, :kind_version, :queue, :priority, :payload, :attempts_max, :backoff_us, :lease_us, COALESCE(:scheduled_at, :now), :now, :on_reconciled, :on_declined, :options, :payload_digest, :operation_digest
WHERE NOT EXISTS (SELECT 1 FROM tenure_job_key k WHERE k.tenant = :tenant AND k.project = :project AND k.idempotency_key = :idempotency_key)
    AND EXISTS (SELECT 1 FROM tenure_authority a WHERE a.tenant = :tenant AND a.epoch = :epoch)
    AND NOT EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = :queue AND q.draining_at IS NOT NULL);
INSERT INTO tenure_ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch)
SELECT j.job_id, j.tenant, j.organization, j.kind, j.queue, CASE WHEN EXISTS (SELECT 1 FROM tenure_queue q WHERE q.name = j.queue AND q.fair = 1) THEN j.tenant ELSE '' END, j.priority, j.scheduled_at, 0, 0, j.attempts_max, :epoch
FROM tenure_job j WHERE j.job_id = :job_id AND j.scheduled_at <= j.created_at
    AND NOT EXISTS (SELECT 1 FROM tenure_job_key k WHERE k.tenant = :tenant AND k.project = :project AND k.idempotency_key = :idempotency_key);
INSERT INTO tenure_deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch)
SELECT j.job_id, j.tenant, j.organization, j.kind, j.queue, j.priority, j.scheduled_at, 0, 0, j.attempts_max, :epoch
FROM tenure_job j WHERE j.job_id = :job_id AND j.scheduled_at > j.created_at
    AND NOT EXISTS (SELECT 1 FROM tenure_job_key k WHERE k.tenant = :tenant AND k.project = :project AND k.idempotency_key = :idempotency_key);
INSERT INTO tenure_job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
SELECT :tenant, :project, :idempotency_key, :job_id, :organization, :kind, :payload_digest
WHERE EXISTS (SELECT 1 FROM tenure_job j WHERE j.job_id = :job_id)
ON CONFLICT DO NOTHING
RETURNING (SELECT j.created_at FROM tenure_job j WHERE j.job_id = :job_id),
    (SELECT a.frozen FROM tenure_authority a WHERE a.tenant = :tenant),
    EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen');
