-- One job in one statement, for a caller's transaction, where every round trip is the caller's time.

-- name: job_create(job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, on_reconciled, on_declined, options, payload_digest, operation_digest, epoch) once
-- writes authority (where the tenant is new), job_key, job, and ready or deferred; nothing where the key is known, the
-- queue is being drained, or the tenant has another epoch than the one that the digest was made with: then no row comes
-- back. Waits for another transaction that reserves the same key. The count makes the new tenant's row come before the
-- key, as everywhere.
WITH given AS (
    SELECT %(job_id)b::uuid AS job_id, %(tenant)b::text AS tenant, %(organization)b::text AS organization,
        %(project)b::text AS project, %(idempotency_key)b::text AS idempotency_key, %(subject)b::text AS subject,
        %(kind)b::text AS kind, %(kind_version)b::integer AS kind_version, %(queue)b::text AS queue,
        %(priority)b::integer AS priority, %(payload)b::text AS payload, %(attempts_max)b::integer AS attempts_max,
        %(backoff_us)b::bigint AS backoff_us, %(lease_us)b::bigint AS lease_us, %(scheduled_at)b::bigint AS wanted_at,
        %(on_reconciled)b::text AS on_reconciled, %(on_declined)b::text AS on_declined, %(options)b::text AS options,
        %(payload_digest)b::text AS payload_digest, %(operation_digest)b::text AS operation_digest,
        %(epoch)b::bigint AS epoch
), stamp AS MATERIALIZED (
    SELECT a.tenant IS NULL AS is_new, COALESCE(a.epoch, 1) AS epoch, COALESCE(a.frozen, false) AS frozen,
        EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen') AS all_frozen, tenure.now_us() AS now
    FROM (SELECT %(tenant)b::text AS tenant) AS wanted LEFT JOIN tenure.authority a ON a.tenant = wanted.tenant
), ensured AS (
    INSERT INTO tenure.authority (tenant) SELECT g.tenant FROM given g, stamp s WHERE s.is_new
    ON CONFLICT DO NOTHING RETURNING tenant
), reserved AS (
    INSERT INTO tenure.job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
    SELECT g.tenant, g.project, g.idempotency_key, g.job_id, g.organization, g.kind, g.payload_digest
    FROM given g, stamp s WHERE s.epoch = g.epoch AND (SELECT count(*) FROM ensured) >= 0
        AND NOT EXISTS (SELECT FROM tenure.queue q WHERE q.name = g.queue AND q.draining_at IS NOT NULL)
    ON CONFLICT DO NOTHING RETURNING job_id
), fresh AS MATERIALIZED (
    SELECT g.*, s.now, COALESCE(g.wanted_at, s.now) AS scheduled_at FROM reserved r, given g, stamp s
), body AS (
    INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, options, payload_digest, operation_digest)
    SELECT job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, payload::json, attempts_max, backoff_us, lease_us, scheduled_at, now, on_reconciled, on_declined, options, payload_digest, operation_digest
    FROM fresh
), due AS (
    INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt, attempts_max, epoch)
    SELECT job_id, tenant, organization, kind, queue, CASE WHEN queue = ANY(ARRAY(SELECT name FROM tenure.queue WHERE fair)) THEN tenant ELSE '' END, priority, scheduled_at, 0, 0, attempts_max, epoch
    FROM fresh WHERE scheduled_at <= now
), later AS (
    INSERT INTO tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt, attempts_max, epoch)
    SELECT job_id, tenant, organization, kind, queue, priority, scheduled_at, 0, 0, attempts_max, epoch
    FROM fresh WHERE scheduled_at > now
)
SELECT f.now, s.frozen, s.all_frozen FROM fresh f, stamp s;
