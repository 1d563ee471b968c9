-- What a recovery says about the work of a restored copy. Suspicion is read with the escalation of a job.

-- name: suspect_mark(since, actor, reason, recovery_id, final) once
-- writes suspect: every job that may still run, or be brought back by a retry or a resume; for a frozen database
INSERT INTO tenure_suspect (job_id, tenant, marked_at, since, generation, actor, reason, recovery_id)
SELECT p.job_id, p.tenant, :now, COALESCE(:since, j.created_at), p.generation, :actor, :reason, :recovery_id
FROM tenure_place p JOIN tenure_job j ON j.job_id = p.job_id
WHERE p.status NOT IN (SELECT value FROM json_each(:final))
ON CONFLICT (job_id, tenant) DO UPDATE SET
    marked_at = excluded.marked_at, since = MIN(tenure_suspect.since, excluded.since), generation = excluded.generation,
    actor = excluded.actor, reason = excluded.reason, recovery_id = excluded.recovery_id;

-- name: suspect_tell(recovery_id, actor, data, command_id) once
-- writes event: one for each job that this recovery has marked
INSERT INTO tenure_event (job_id, tenant, name, at, generation, status, actor, data, command_id)
SELECT job_id, tenant, 'suspected', marked_at, generation, NULL, :actor, :data, :command_id
FROM tenure_suspect WHERE recovery_id = :recovery_id ORDER BY job_id;

-- name: suspect_marked(recovery_id) once
-- locks nothing; how many jobs a recovery has marked
SELECT count(*) FROM tenure_suspect WHERE recovery_id = :recovery_id;

-- name: suspect_list(tenant, after, limit, final) once
-- locks nothing; suspect jobs that may still run, oldest first, after the given id
SELECT s.job_id, s.actor, s.reason FROM tenure_suspect s
JOIN tenure_place p ON p.job_id = s.job_id
WHERE (:tenant IS NULL OR s.tenant = :tenant)
    AND (:after IS NULL OR s.job_id > :after)
    AND p.status NOT IN (SELECT value FROM json_each(:final))
ORDER BY s.job_id
LIMIT :limit;

-- name: suspect_counts(tenant, final) once
-- locks nothing; how many suspect jobs there are, by tenant and status
SELECT s.tenant, p.status, count(*) FROM tenure_suspect s
JOIN tenure_place p ON p.job_id = s.job_id
WHERE (:tenant IS NULL OR s.tenant = :tenant) AND p.status NOT IN (SELECT value FROM json_each(:final))
GROUP BY s.tenant, p.status
ORDER BY s.tenant, p.status;

-- name: suspect_message(job_id, message_id, tenant, epoch, actor, reason, act_id) each
-- writes suspect: the job that a message of before a recovery becomes, unless the copy has it; for a readmission, under
-- the tenant's authority
INSERT INTO tenure_suspect (job_id, tenant, marked_at, since, generation, actor, reason, recovery_id)
SELECT :job_id, m.tenant, r.at, m.created_at, 0, :actor, :reason, :act_id
FROM tenure_message m
JOIN (SELECT max(at) AS at FROM tenure_authority_event WHERE tenant = :tenant AND what = 'recovered' AND epoch > :epoch) r
    ON r.at IS NOT NULL
WHERE m.message_id = :message_id AND m.tenant = :tenant
    AND NOT EXISTS (SELECT 1 FROM tenure_job WHERE job_id = :job_id)
ON CONFLICT (job_id, tenant) DO UPDATE SET marked_at = excluded.marked_at;

-- name: suspect_delete(job_id) each
-- writes suspect
DELETE FROM tenure_suspect WHERE job_id = :job_id;

-- name: suspect_forget() once
-- writes suspect: what is final is not suspect any more; a plain completion leaves its row to this
DELETE FROM tenure_suspect WHERE EXISTS (
    SELECT 1 FROM tenure_outcome o WHERE o.job_id = tenure_suspect.job_id AND o.status <> 'failed'
);

-- name: evidence_needed(tenant, after, limit, final) once
-- locks nothing; jobs with an open effect or under suspicion, oldest first, after the given id
SELECT job_id FROM (
    SELECT e.job_id, e.tenant FROM tenure_effect e WHERE e.state IN ('pending', 'unknown')
    UNION
    SELECT s.job_id, s.tenant FROM tenure_suspect s JOIN tenure_place p ON p.job_id = s.job_id
    WHERE p.status NOT IN (SELECT value FROM json_each(:final))
) n
WHERE (:tenant IS NULL OR n.tenant = :tenant) AND (:after IS NULL OR n.job_id > :after)
ORDER BY job_id
LIMIT :limit;

-- name: kind_operations(tenant, kind) each
-- locks nothing; the effects that jobs of a kind have had and what was last declared of them; reads every effect of the kind
SELECT j.kind, e.name, e.terms, MAX(e.begun_at) FROM tenure_effect e
JOIN tenure_job j ON j.job_id = e.job_id
WHERE j.kind = :kind AND (:tenant IS NULL OR j.tenant = :tenant) AND e.name <> '' AND e.terms IS NOT NULL
GROUP BY j.kind, e.name
ORDER BY e.name;
