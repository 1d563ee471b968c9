-- What row security by tenant needs whether or not it is on; it is switched on by row_security.sql. The one thing that it
-- goes by is the setting `tenure.tenant` of the transaction.

-- May a transaction that names no tenant see them all? Where row security is off, and for the roles that serve all tenants:
-- those of the policy `every_tenant`. Whoever asks is the role that the session has taken on, also inside a function that
-- runs with the rights of the schema's owner.
CREATE FUNCTION tenure.every_tenant() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
SELECT coalesce(current_setting('tenure.tenant', true), '') = '' AND CASE
    WHEN NOT (SELECT c.relrowsecurity FROM pg_class c WHERE c.oid = 'tenure.job'::regclass) THEN true
    ELSE EXISTS (
        SELECT FROM (SELECT coalesce(nullif(current_setting('role'), 'none'), session_user::text) AS name) asks
        WHERE EXISTS (SELECT FROM pg_roles r WHERE r.rolname = asks.name AND (r.rolsuper OR r.rolbypassrls))
            OR EXISTS (
                SELECT FROM pg_policy p CROSS JOIN unnest(p.polroles) AS serves (role)
                WHERE p.polrelid = 'tenure.job'::regclass AND p.polname = 'every_tenant'
                    AND pg_has_role(asks.name::name, serves.role, 'USAGE')
            )
    ) END
$$;

-- What a producer may know of the place of a message; `message_place` has more columns than it may read.
CREATE VIEW tenure.message_known AS
SELECT message_id, tenant, position, epoch FROM tenure.message_due
UNION ALL
SELECT message_id, tenant, position, epoch FROM tenure.message_later
UNION ALL
SELECT message_id, tenant, position, epoch FROM tenure.message_lease
UNION ALL
SELECT message_id, tenant, position, epoch FROM tenure.message_resting
UNION ALL
SELECT message_id, tenant, position, epoch FROM tenure.message_done;

-- As before, but what is shown to a transaction that names no tenant is for the function above to say.

CREATE OR REPLACE FUNCTION tenure.known_places(ids uuid[], digests text[]) RETURNS TABLE (
    place text, job_id uuid, tenant text, status text, generation bigint, attempt integer, attempts_max integer, epoch bigint,
    run_at bigint, worker_id text, attempt_id uuid, expires_at bigint, lease_us bigint, claimed_at bigint,
    cancel_requested_at bigint, cancel_reason text, progress text, parked text, result text, error_code text,
    error_message text, finished_at bigint, command_id uuid, organization text, project text, idempotency_key text,
    subject text, kind text, kind_version integer, queue text, priority integer, payload text, backoff_us bigint,
    job_lease_us bigint, scheduled_at bigint, created_at bigint, on_reconciled text, on_declined text, options text,
    payload_digest text, operation_digest text, tenant_epoch bigint, frozen boolean, all_frozen boolean, now bigint
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
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
WHERE p.job_id = ANY(known_places.ids)
    AND (j.job_id, j.payload_digest) IN (SELECT g.id, g.digest FROM unnest(known_places.ids, known_places.digests) AS g (id, digest))
    AND (j.tenant = current_setting('tenure.tenant', true) OR tenure.every_tenant())
$$;

CREATE OR REPLACE FUNCTION tenure.known_effects(ids uuid[], digests text[]) RETURNS TABLE (
    tenant text, job_id uuid, name text, state text, operation_key text, request_digest text, attempt_id uuid,
    generation bigint, created_at bigint, begun_at bigint, deadline_at bigint, terms text, receipt text, reason text,
    settled_at bigint, settled_by text, ordinal integer, lookups integer, asked_at bigint
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
SELECT e.tenant, e.job_id, e.name, e.state, e.operation_key, e.request_digest, e.attempt_id, e.generation,
    e.created_at, e.begun_at, e.deadline_at, e.terms, e.receipt::text, e.reason, e.settled_at, e.settled_by,
    e.ordinal, e.lookups, e.asked_at
FROM tenure.effect e JOIN tenure.job j ON j.job_id = e.job_id AND j.tenant = e.tenant
WHERE e.job_id = ANY(known_effects.ids)
    AND (j.job_id, j.payload_digest) IN (SELECT g.id, g.digest FROM unnest(known_effects.ids, known_effects.digests) AS g (id, digest))
    AND (j.tenant = current_setting('tenure.tenant', true) OR tenure.every_tenant())
ORDER BY e.job_id, e.created_at, e.name
$$;

CREATE OR REPLACE FUNCTION tenure.known_notes(ids uuid[], digests text[]) RETURNS TABLE (
    job_id uuid, escalated_at bigint, reason text, marked_at bigint, since bigint, generation bigint
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
SELECT s.job_id, s.escalated_at, s.reason, NULL::bigint, NULL::bigint, NULL::bigint
FROM tenure.escalation s JOIN tenure.job j ON j.job_id = s.job_id AND j.tenant = s.tenant
WHERE s.job_id = ANY(known_notes.ids)
    AND (j.job_id, j.payload_digest) IN (SELECT g.id, g.digest FROM unnest(known_notes.ids, known_notes.digests) AS g (id, digest))
    AND (j.tenant = current_setting('tenure.tenant', true) OR tenure.every_tenant())
UNION ALL
SELECT s.job_id, NULL, NULL, s.marked_at, s.since, s.generation
FROM tenure.suspect s JOIN tenure.job j ON j.job_id = s.job_id AND j.tenant = s.tenant
WHERE s.job_id = ANY(known_notes.ids)
    AND (j.job_id, j.payload_digest) IN (SELECT g.id, g.digest FROM unnest(known_notes.ids, known_notes.digests) AS g (id, digest))
    AND (j.tenant = current_setting('tenure.tenant', true) OR tenure.every_tenant())
$$;
