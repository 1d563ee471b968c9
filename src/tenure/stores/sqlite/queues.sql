-- The SQLite store's statements about queues as a whole, in the order of the PostgreSQL twin.

-- name: queue_hurry() once
-- reads nothing: the writer has waited for the only write lock already
SELECT 1;

-- name: queue_exclusive() once
-- locks nothing more: no claim and no creation runs beside the writer
SELECT 1;

-- name: queue_ensure(name) once
-- writes queue where nobody has said anything about this one
INSERT INTO tenure_queue (name, fair) VALUES (:name, 0) ON CONFLICT DO NOTHING;

-- name: queue_lock(name) once
-- locks the queue's row
SELECT q.name, q.fair, q.paused_at, q.paused_by, q.pause_reason, q.owner, q.draining_at, :now
FROM tenure_queue q WHERE q.name = :name;

-- name: queue_states(name) once
-- locks nothing; every queue that somebody has said something about, or one of them
SELECT q.name, q.fair, q.paused_at, q.paused_by, q.pause_reason, q.owner, q.draining_at, :now
FROM tenure_queue q WHERE :name IS NULL OR q.name = :name ORDER BY q.name;

-- name: queue_owned() once
-- locks nothing; queues with an owner
SELECT q.name, q.owner FROM tenure_queue q WHERE q.owner IS NOT NULL ORDER BY q.name;

-- name: queue_update(name, paused_at, paused_by, pause_reason, owner, draining_at) once
-- writes queue; its row is locked
UPDATE tenure_queue SET paused_at = :paused_at, paused_by = :paused_by, pause_reason = :pause_reason,
    owner = :owner, draining_at = :draining_at
WHERE name = :name;

-- name: queue_contents(name, tenant) once
-- locks nothing; how many jobs each queue has in each place, and how many finished ones whose outcome is uncertain
WITH held (place, queue, tenant) AS (
    SELECT 'ready', queue, tenant FROM tenure_ready
    UNION ALL
    SELECT 'deferred', queue, tenant FROM tenure_deferred
    UNION ALL
    SELECT 'resting', queue, tenant FROM tenure_resting
    UNION ALL
    SELECT 'leased', j.queue, l.tenant FROM tenure_lease l CROSS JOIN tenure_job j ON j.job_id = l.job_id AND j.tenant = l.tenant
    UNION ALL
    SELECT 'uncertain', j.queue, o.tenant
    FROM (SELECT DISTINCT e.job_id, e.tenant FROM tenure_effect e WHERE e.state IN ('pending', 'unknown')) o
    CROSS JOIN tenure_outcome t ON t.job_id = o.job_id AND t.tenant = o.tenant
    CROSS JOIN tenure_job j ON j.job_id = o.job_id AND j.tenant = o.tenant
)
SELECT queue, place, count(*) FROM held
WHERE (:name IS NULL OR queue = :name) AND (:tenant IS NULL OR tenant = :tenant)
GROUP BY queue, place ORDER BY queue, place;

-- name: queue_leases(name) once
-- locks nothing; the live leases of a queue
SELECT l.job_id, l.worker_id, l.expires_at FROM tenure_lease l
CROSS JOIN tenure_job j ON j.job_id = l.job_id AND j.tenant = l.tenant
WHERE j.queue = :name AND l.expires_at - :now > 0
ORDER BY l.job_id;

-- name: queue_change_insert(queue, at, what, actor, reason, old_owner, new_owner, jobs, command_id) once
-- writes queue_change; the queue's row is locked
INSERT INTO tenure_queue_change (queue, at, what, actor, reason, old_owner, new_owner, jobs, command_id)
VALUES (:queue, :at, :what, :actor, :reason, :old_owner, :new_owner, :jobs, :command_id);

-- name: queue_change_known(queue, command_id) once
-- locks nothing; whether this command has changed the queue already
SELECT 1 FROM tenure_queue_change WHERE queue = :queue AND command_id = :command_id;

-- name: queue_changes(queue, limit) once
-- locks nothing; what people did with a queue, newest first
SELECT queue, at, what, actor, reason, old_owner, new_owner, jobs FROM tenure_queue_change
WHERE queue = :queue ORDER BY change_id DESC LIMIT :limit;
