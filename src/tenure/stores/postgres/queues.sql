-- The PostgreSQL store's statements about queues as a whole, in the order of the SQLite twin.

-- name: queue_hurry() once
-- writes a setting of this transaction: how long it waits for a lock before it gives up
SELECT set_config('lock_timeout', '250ms', true);

-- name: queue_exclusive() once
-- locks the table of queues: every claim and every creation reads it, so none that has begun is left unseen, and those that
-- come wait until this transaction has ended
LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE;

-- name: queue_ensure(name) once
-- writes queue where nobody has said anything about this one
INSERT INTO tenure.queue (name, fair) VALUES (%(name)b, false) ON CONFLICT DO NOTHING;

-- name: queue_lock(name) once
-- locks the queue's row
SELECT q.name, q.fair, q.paused_at, q.paused_by, q.pause_reason, q.owner, q.draining_at, tenure.now_us()
FROM tenure.queue q WHERE q.name = %(name)b FOR UPDATE;

-- name: queue_states(name) once
-- locks nothing; every queue that somebody has said something about, or one of them
SELECT q.name, q.fair, q.paused_at, q.paused_by, q.pause_reason, q.owner, q.draining_at, tenure.now_us()
FROM tenure.queue q WHERE %(name)b::text IS NULL OR q.name = %(name)b ORDER BY q.name;

-- name: queue_owned() once
-- locks nothing; queues with an owner
SELECT q.name, q.owner FROM tenure.queue q WHERE q.owner IS NOT NULL ORDER BY q.name;

-- name: queue_update(name, paused_at, paused_by, pause_reason, owner, draining_at) once
-- writes queue; its row is locked
UPDATE tenure.queue SET paused_at = %(paused_at)b::bigint, paused_by = %(paused_by)b, pause_reason = %(pause_reason)b,
    owner = %(owner)b, draining_at = %(draining_at)b::bigint
WHERE name = %(name)b;

-- name: queue_contents(name, tenant) once
-- locks nothing; how many jobs each queue has in each place, and how many finished ones whose outcome is uncertain
WITH held AS (
    SELECT 'ready' AS place, queue, tenant FROM tenure.ready
    UNION ALL
    SELECT 'deferred', queue, tenant FROM tenure.deferred
    UNION ALL
    SELECT 'resting', queue, tenant FROM tenure.resting
    UNION ALL
    SELECT 'leased', j.queue, l.tenant FROM tenure.lease l JOIN tenure.job j ON j.job_id = l.job_id AND j.tenant = l.tenant
    UNION ALL
    SELECT 'uncertain', j.queue, o.tenant
    FROM (SELECT DISTINCT e.job_id, e.tenant FROM tenure.effect e WHERE e.state IN ('pending', 'unknown')) o
    JOIN tenure.outcome t ON t.job_id = o.job_id AND t.tenant = o.tenant
    JOIN tenure.job j ON j.job_id = o.job_id AND j.tenant = o.tenant
)
SELECT queue, place, count(*) FROM held
WHERE (%(name)b::text IS NULL OR queue = %(name)b) AND (%(tenant)b::text IS NULL OR tenant = %(tenant)b)
GROUP BY queue, place ORDER BY queue, place;

-- name: queue_leases(name) once
-- locks nothing; the live leases of a queue
SELECT l.job_id, l.worker_id, l.expires_at FROM tenure.lease l
JOIN tenure.job j ON j.job_id = l.job_id AND j.tenant = l.tenant
WHERE j.queue = %(name)b AND l.expires_at - (SELECT tenure.now_us()) > 0
ORDER BY l.job_id;

-- name: queue_change_insert(queue, at, what, actor, reason, old_owner, new_owner, jobs, command_id) once
-- writes queue_change; the queue's row is locked
INSERT INTO tenure.queue_change (queue, at, what, actor, reason, old_owner, new_owner, jobs, command_id)
VALUES (%(queue)b, %(at)b::bigint, %(what)b, %(actor)b, %(reason)b, %(old_owner)b, %(new_owner)b, %(jobs)b::bigint, %(command_id)b::uuid);

-- name: queue_change_known(queue, command_id) once
-- locks nothing; whether this command has changed the queue already
SELECT 1 FROM tenure.queue_change WHERE queue = %(queue)b AND command_id = %(command_id)b::uuid;

-- name: queue_changes(queue, limit) once
-- locks nothing; what people did with a queue, newest first
SELECT queue, at, what, actor, reason, old_owner, new_owner, jobs FROM tenure.queue_change
WHERE queue = %(queue)b ORDER BY change_id DESC LIMIT %(limit)b;
