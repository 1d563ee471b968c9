-- The SQLite store's statements that count what waits, runs and needs somebody, in the order of the PostgreSQL twin.
-- They lock nothing and never walk finished jobs: `outcome_attention` leads to the few that need somebody, and CROSS JOIN
-- keeps the planner, which knows no sizes here, from beginning with the many.

-- name: stats_jobs(tenant, codes) once
-- locks nothing; groups of jobs with the facts that rules judge, in one statement so that none is counted twice: tenant,
-- kind, queue, status, due, epoch is current, tenant is frozen, lease has expired, cancellation is pending, boundary is open,
-- a provider of it, escalated, error code where it is one of these, how many, and since when the first
WITH clock (now) AS (SELECT :now),
uncertain AS (
    SELECT e.job_id, e.tenant, min(json_extract(e.terms, '$.provider')) AS provider
    FROM tenure_effect e
    WHERE e.state IN ('pending', 'unknown') AND (:tenant IS NULL OR e.tenant = :tenant)
    GROUP BY e.job_id, e.tenant
),
ended AS (
    SELECT o.job_id, o.tenant FROM tenure_outcome o
    WHERE o.status IN ('failed', 'dead_letter', 'halt_unsafe') AND (:tenant IS NULL OR o.tenant = :tenant)
    UNION
    SELECT o.job_id, o.tenant FROM uncertain u CROSS JOIN tenure_outcome o ON o.job_id = u.job_id AND o.tenant = u.tenant
    UNION
    SELECT o.job_id, o.tenant FROM tenure_escalation s CROSS JOIN tenure_outcome o ON o.job_id = s.job_id AND o.tenant = s.tenant
    WHERE :tenant IS NULL OR s.tenant = :tenant
),
held AS (
    SELECT r.job_id, r.tenant, r.kind, r.queue, 'queued' AS status, r.epoch, r.run_at AS since, r.run_at,
        NULL AS expires_at, 0 AS cancelling, NULL AS code
    FROM tenure_ready r WHERE :tenant IS NULL OR r.tenant = :tenant
    UNION ALL
    SELECT r.job_id, r.tenant, r.kind, r.queue, 'queued', r.epoch, r.run_at, r.run_at, NULL, 0, NULL
    FROM tenure_deferred r WHERE :tenant IS NULL OR r.tenant = :tenant
    UNION ALL
    SELECT r.job_id, r.tenant, r.kind, r.queue, r.status, r.epoch, COALESCE(r.finished_at, r.run_at), r.run_at, NULL, 0, NULL
    FROM tenure_resting r WHERE :tenant IS NULL OR r.tenant = :tenant
    UNION ALL
    SELECT l.job_id, l.tenant, j.kind, j.queue, l.status, l.epoch, l.claimed_at, l.run_at, l.expires_at,
        l.cancel_requested_at IS NOT NULL, NULL
    FROM tenure_lease l CROSS JOIN tenure_job j ON j.job_id = l.job_id AND j.tenant = l.tenant
    WHERE :tenant IS NULL OR l.tenant = :tenant
    UNION ALL
    SELECT o.job_id, o.tenant, j.kind, j.queue, o.status, o.epoch, o.finished_at, o.run_at, NULL, 0,
        CASE WHEN o.error_code IN (SELECT value FROM json_each(:codes)) THEN o.error_code END
    FROM ended e
    CROSS JOIN tenure_outcome o ON o.job_id = e.job_id AND o.tenant = e.tenant
    CROSS JOIN tenure_job j ON j.job_id = o.job_id AND j.tenant = o.tenant
),
judged AS (
    SELECT h.tenant, h.kind, h.queue, h.status, h.epoch, h.run_at <= clock.now AS due, h.expires_at - clock.now <= 0 AS expired,
        h.cancelling, u.job_id IS NOT NULL AS open, u.provider, s.job_id IS NOT NULL AS escalated, h.code,
        COALESCE(s.escalated_at, CASE WHEN h.expires_at - clock.now <= 0 THEN h.expires_at END, h.since) AS since
    FROM held h
    CROSS JOIN clock
    LEFT JOIN uncertain u ON u.job_id = h.job_id AND u.tenant = h.tenant
    LEFT JOIN tenure_escalation s ON s.job_id = h.job_id AND s.tenant = h.tenant
),
counted AS (
    SELECT tenant, kind, queue, status, epoch, due, expired, cancelling, open, provider, escalated, code,
        count(*) AS many, min(since) AS since
    FROM judged GROUP BY tenant, kind, queue, status, epoch, due, expired, cancelling, open, provider, escalated, code
)
SELECT c.tenant, c.kind, c.queue, c.status, c.due, c.epoch = COALESCE(a.epoch, 1), COALESCE(a.frozen, 0),
    COALESCE(c.expired, 0), c.cancelling, c.open, c.provider, c.escalated, c.code, c.many, c.since
FROM counted c LEFT JOIN tenure_authority a ON a.tenant = c.tenant
ORDER BY c.tenant, c.kind, c.queue;

-- name: stats_store() once
-- locks nothing; the clock, and whether the database is frozen
SELECT :now, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen');

-- name: stats_workers() once
-- locks nothing; of each live worker its kinds and providers, as JSON, and its owner
SELECT n.kinds, n.providers, n.owner FROM tenure_announcement n
WHERE n.expires_at - :now > 0;

-- name: kind_list() once
-- locks nothing; every kind that a worker ever announced
SELECT name FROM tenure_known_kind;

-- name: kind_remember(name) each
-- writes known_kind where the kind is new
INSERT INTO tenure_known_kind (name) VALUES (:name) ON CONFLICT DO NOTHING;
