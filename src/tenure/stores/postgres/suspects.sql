-- What a recovery says about the work of a restored copy. Suspicion is read with the escalation of a job.

-- name: suspect_mark(since, actor, reason, recovery_id, final) once
-- writes suspect: every job that may still run, or be brought back by a retry or a resume; for a frozen database
INSERT INTO tenure.suspect AS known (job_id, tenant, marked_at, since, generation, actor, reason, recovery_id)
SELECT p.job_id, p.tenant, (SELECT tenure.now_us()), COALESCE(%(since)b::bigint, j.created_at), p.generation,
    %(actor)b::text, %(reason)b::text, %(recovery_id)b::uuid
FROM tenure.place p JOIN tenure.job j ON j.job_id = p.job_id AND j.tenant = p.tenant
WHERE p.status <> ALL(%(final)b::text[])
ORDER BY p.job_id
ON CONFLICT (job_id, tenant) DO UPDATE SET
    marked_at = excluded.marked_at, since = LEAST(known.since, excluded.since), generation = excluded.generation,
    actor = excluded.actor, reason = excluded.reason, recovery_id = excluded.recovery_id;

-- name: suspect_tell(recovery_id, actor, data, command_id) once
-- writes event: one for each job that this recovery has marked
INSERT INTO tenure.event (job_id, tenant, name, at, generation, status, actor, data, command_id)
SELECT job_id, tenant, 'suspected', marked_at, generation, NULL, %(actor)b::text, %(data)b::text::json, %(command_id)b::uuid
FROM tenure.suspect WHERE recovery_id = %(recovery_id)b ORDER BY job_id;

-- name: suspect_marked(recovery_id) once
-- locks nothing; how many jobs a recovery has marked
SELECT count(*) FROM tenure.suspect WHERE recovery_id = %(recovery_id)b;

-- name: suspect_list(tenant, after, limit, final) once
-- locks nothing; suspect jobs that may still run, oldest first, after the given id
SELECT s.job_id, s.actor, s.reason FROM tenure.suspect s
JOIN tenure.place p ON p.job_id = s.job_id AND p.tenant = s.tenant
WHERE (%(tenant)b::text IS NULL OR s.tenant = %(tenant)b)
    AND (%(after)b::uuid IS NULL OR s.job_id > %(after)b)
    AND p.status <> ALL(%(final)b::text[])
ORDER BY s.job_id
LIMIT %(limit)b;

-- name: suspect_counts(tenant, final) once
-- locks nothing; how many suspect jobs there are, by tenant and status
SELECT s.tenant, p.status, count(*) FROM tenure.suspect s
JOIN tenure.place p ON p.job_id = s.job_id AND p.tenant = s.tenant
WHERE (%(tenant)b::text IS NULL OR s.tenant = %(tenant)b)
    AND p.status <> ALL(%(final)b::text[])
GROUP BY s.tenant, p.status
ORDER BY s.tenant COLLATE "C", p.status COLLATE "C";

-- name: suspect_message(job_id, message_id, tenant, epoch, actor, reason, act_id) each
-- writes suspect: the job that a message of before a recovery becomes, unless the copy has it; for a readmission, under
-- the tenant's authority
INSERT INTO tenure.suspect AS known (job_id, tenant, marked_at, since, generation, actor, reason, recovery_id)
SELECT given.job_id, m.tenant, r.at, m.created_at, 0, given.actor, given.reason, given.act_id
FROM unnest(%(job_id)b::uuid[], %(message_id)b::uuid[], %(tenant)b::text[], %(epoch)b::bigint[], %(actor)b::text[], %(reason)b::text[], %(act_id)b::uuid[])
    AS given (job_id, message_id, tenant, epoch, actor, reason, act_id)
JOIN tenure.message m ON m.message_id = given.message_id AND m.tenant = given.tenant
CROSS JOIN LATERAL (
    SELECT max(at) AS at FROM tenure.authority_event e
    WHERE e.tenant = given.tenant AND e.what = 'recovered' AND e.epoch > given.epoch
) r
WHERE r.at IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.job j WHERE j.job_id = given.job_id)
ON CONFLICT (job_id, tenant) DO UPDATE SET marked_at = excluded.marked_at;

-- name: suspect_delete(job_id) each
-- writes suspect
DELETE FROM tenure.suspect WHERE job_id = ANY(%(job_id)b::uuid[]);

-- name: suspect_forget() once
-- writes suspect: what is final is not suspect any more; a plain completion leaves its row to this
DELETE FROM tenure.suspect s WHERE EXISTS (
    SELECT 1 FROM tenure.outcome o WHERE o.job_id = s.job_id AND o.tenant = s.tenant AND o.status <> 'failed'
);

-- name: evidence_needed(tenant, after, limit, final) once
-- locks nothing; jobs with an open effect or under suspicion, oldest first, after the given id
SELECT job_id FROM (
    SELECT e.job_id, e.tenant FROM tenure.effect e WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT s.job_id, s.tenant FROM tenure.suspect s JOIN tenure.place p ON p.job_id = s.job_id AND p.tenant = s.tenant
    WHERE p.status <> ALL(%(final)b::text[])
) n
WHERE (%(tenant)b::text IS NULL OR n.tenant = %(tenant)b) AND (%(after)b::uuid IS NULL OR n.job_id > %(after)b)
ORDER BY job_id
LIMIT %(limit)b;

-- name: kind_operations(tenant, kind) each
-- locks nothing; the effects that jobs of a kind have had and what was last declared of them; reads every effect of the kind
SELECT DISTINCT ON (j.kind, e.name) j.kind, e.name, e.terms, e.begun_at FROM tenure.effect e
JOIN tenure.job j ON j.job_id = e.job_id AND j.tenant = e.tenant
JOIN unnest(%(tenant)b::text[], %(kind)b::text[]) AS given (tenant, kind)
    ON j.kind = given.kind AND (given.tenant IS NULL OR j.tenant = given.tenant)
WHERE e.name <> '' AND e.terms IS NOT NULL
ORDER BY j.kind, e.name, e.begun_at DESC;
