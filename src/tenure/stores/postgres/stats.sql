-- The PostgreSQL store's statements that count what waits, runs and needs somebody, in the order of the SQLite twin.
-- They lock nothing and never walk finished jobs: `outcome_attention` leads to the few that need somebody, and LATERAL
-- with a limit keeps the planner, which may know no sizes here, from beginning with the many.

-- name: stats_jobs(tenant, codes) once
-- locks nothing; groups of jobs with the facts that rules judge, in one statement so that none is counted twice: tenant,
-- kind, queue, status, due, epoch is current, tenant is frozen, lease has expired, cancellation is pending, boundary is open,
-- a provider of it, escalated, error code where it is one of these, how many, and since when the first
WITH clock AS MATERIALIZED (SELECT tenure.now_us() AS now),
uncertain AS MATERIALIZED (
    SELECT e.job_id, e.tenant, min(e.terms::json ->> 'provider') AS provider
    FROM tenure.effect e
    WHERE e.state IN ('pending', 'unknown') AND (%(tenant)b::text IS NULL OR e.tenant = %(tenant)b)
    GROUP BY e.job_id, e.tenant
),
ended AS MATERIALIZED (
    SELECT o.job_id, o.tenant FROM tenure.outcome o
    WHERE o.status IN ('failed', 'dead_letter', 'halt_unsafe') AND (%(tenant)b::text IS NULL OR o.tenant = %(tenant)b)
    UNION
    SELECT o.job_id, o.tenant FROM uncertain u
    CROSS JOIN LATERAL (SELECT o.job_id, o.tenant FROM tenure.outcome o WHERE o.job_id = u.job_id AND o.tenant = u.tenant LIMIT 1) o
    UNION
    SELECT o.job_id, o.tenant FROM tenure.escalation s
    CROSS JOIN LATERAL (SELECT o.job_id, o.tenant FROM tenure.outcome o WHERE o.job_id = s.job_id AND o.tenant = s.tenant LIMIT 1) o
    WHERE %(tenant)b::text IS NULL OR s.tenant = %(tenant)b
),
held AS (
    SELECT r.job_id, r.tenant, r.kind, r.queue, 'queued' AS status, r.epoch, r.run_at AS since, r.run_at,
        NULL::bigint AS expires_at, false AS cancelling, NULL::text AS code
    FROM tenure.ready r WHERE %(tenant)b::text IS NULL OR r.tenant = %(tenant)b
    UNION ALL
    SELECT r.job_id, r.tenant, r.kind, r.queue, 'queued', r.epoch, r.run_at, r.run_at, NULL, false, NULL
    FROM tenure.deferred r WHERE %(tenant)b::text IS NULL OR r.tenant = %(tenant)b
    UNION ALL
    SELECT r.job_id, r.tenant, r.kind, r.queue, r.status, r.epoch, COALESCE(r.finished_at, r.run_at), r.run_at, NULL, false, NULL
    FROM tenure.resting r WHERE %(tenant)b::text IS NULL OR r.tenant = %(tenant)b
    UNION ALL
    SELECT l.job_id, l.tenant, j.kind, j.queue, l.status, l.epoch, l.claimed_at, l.run_at, l.expires_at,
        l.cancel_requested_at IS NOT NULL, NULL
    FROM tenure.lease l
    CROSS JOIN LATERAL (SELECT j.kind, j.queue FROM tenure.job j WHERE j.job_id = l.job_id AND j.tenant = l.tenant LIMIT 1) j
    WHERE %(tenant)b::text IS NULL OR l.tenant = %(tenant)b
    UNION ALL
    SELECT o.job_id, o.tenant, j.kind, j.queue, o.status, o.epoch, o.finished_at, o.run_at, NULL, false,
        CASE WHEN o.error_code = ANY(%(codes)b::text[]) THEN o.error_code END
    FROM ended e
    CROSS JOIN LATERAL (SELECT o.* FROM tenure.outcome o WHERE o.job_id = e.job_id AND o.tenant = e.tenant LIMIT 1) o
    CROSS JOIN LATERAL (SELECT j.kind, j.queue FROM tenure.job j WHERE j.job_id = e.job_id AND j.tenant = e.tenant LIMIT 1) j
),
judged AS (
    SELECT h.tenant, h.kind, h.queue, h.status, h.epoch, h.run_at <= clock.now AS due, h.expires_at - clock.now <= 0 AS expired,
        h.cancelling, u.job_id IS NOT NULL AS open, u.provider, s.job_id IS NOT NULL AS escalated, h.code,
        COALESCE(s.escalated_at, CASE WHEN h.expires_at - clock.now <= 0 THEN h.expires_at END, h.since) AS since
    FROM held h
    CROSS JOIN clock
    LEFT JOIN uncertain u ON u.job_id = h.job_id AND u.tenant = h.tenant
    LEFT JOIN tenure.escalation s ON s.job_id = h.job_id AND s.tenant = h.tenant
),
counted AS (
    SELECT tenant, kind, queue, status, epoch, due, expired, cancelling, open, provider, escalated, code,
        count(*) AS many, min(since) AS since
    FROM judged GROUP BY tenant, kind, queue, status, epoch, due, expired, cancelling, open, provider, escalated, code
)
SELECT c.tenant, c.kind, c.queue, c.status, c.due, c.epoch = COALESCE(a.epoch, 1), COALESCE(a.frozen, false),
    COALESCE(c.expired, false), c.cancelling, c.open, c.provider, c.escalated, c.code, c.many, c.since
FROM counted c LEFT JOIN tenure.authority a ON a.tenant = c.tenant
ORDER BY c.tenant, c.kind, c.queue;

-- name: stats_store() once
-- locks nothing; the clock, and whether the database is frozen
SELECT tenure.now_us(), EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen');

-- name: stats_workers() once
-- locks nothing; of each live worker its kinds and providers, as JSON, and its owner
SELECT array_to_json(n.kinds)::text, array_to_json(n.providers)::text, n.owner FROM tenure.announcement n
WHERE n.expires_at - (SELECT tenure.now_us()) > 0;

-- name: kind_list() once
-- locks nothing; every kind that a worker ever announced
SELECT name FROM tenure.known_kind;

-- name: kind_remember(name) each
-- writes known_kind where the kind is new
INSERT INTO tenure.known_kind (name)
SELECT name FROM unnest(%(name)b::text[]) AS given (name)
WHERE NOT EXISTS (SELECT FROM tenure.known_kind k WHERE k.name = given.name)
ORDER BY name
ON CONFLICT DO NOTHING;
