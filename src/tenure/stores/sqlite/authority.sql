-- The SQLite store's statements about who may act: epochs, freezes, held work, and what tells one database from its copy,
-- in the order of the PostgreSQL twin.

-- name: authority_exclusive(tenant) each
-- locks the authority rows of these tenants, alone, in order: waits for every fenced write that has them shared
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_authority a WHERE a.tenant = :tenant;

-- name: authority_save(tenant, epoch, frozen) each
-- writes authority
INSERT INTO tenure_authority (tenant, epoch, frozen) VALUES (:tenant, :epoch, :frozen)
ON CONFLICT (tenant) DO UPDATE SET epoch = excluded.epoch, frozen = excluded.frozen;

-- name: authority_list(tenant) once
-- locks nothing; every tenant with its epoch and freeze, by name
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure_meta WHERE key = 'frozen'), :now
FROM tenure_authority a WHERE :tenant IS NULL OR a.tenant = :tenant ORDER BY a.tenant;

-- name: authority_event_insert(act_id, tenant, what, epoch, actor, reason, at) each
-- writes authority_event; the same act is written once, however often it is applied
INSERT INTO tenure_authority_event (act_id, tenant, what, epoch, actor, reason, at)
VALUES (:act_id, :tenant, :what, :epoch, :actor, :reason, :at)
ON CONFLICT DO NOTHING;

-- name: authority_event_known(act_id) once
-- locks nothing; the act, where it was done already
SELECT tenant, what, epoch FROM tenure_authority_event WHERE act_id = :act_id;

-- name: authority_event_list(tenant, limit) once
-- locks nothing; the last acts on a tenant, newest first
SELECT tenant, what, epoch, actor, reason, at FROM tenure_authority_event
WHERE tenant = :tenant ORDER BY at DESC, act_id DESC LIMIT :limit;

-- name: held_list(tenant, epoch, current, limit) once
-- locks nothing; queued jobs of a tenant under an older epoch than the current one, or under the one given, oldest first
SELECT job_id FROM (
    SELECT job_id, epoch FROM tenure_ready WHERE tenant = :tenant AND epoch < :current
    UNION ALL
    SELECT job_id, epoch FROM tenure_deferred WHERE tenant = :tenant AND epoch < :current
    UNION ALL
    SELECT job_id, epoch FROM tenure_resting WHERE status = 'queued' AND tenant = :tenant AND epoch < :current
) WHERE :epoch IS NULL OR epoch = :epoch
ORDER BY job_id LIMIT :limit;

-- name: held_count(tenant) once
-- locks nothing; how many queued jobs of each epoch a tenant has
SELECT epoch, count(*) FROM (
    SELECT epoch FROM tenure_ready WHERE tenant = :tenant
    UNION ALL
    SELECT epoch FROM tenure_deferred WHERE tenant = :tenant
    UNION ALL
    SELECT epoch FROM tenure_resting WHERE status = 'queued' AND tenant = :tenant
) GROUP BY epoch ORDER BY epoch;

-- name: meta_list() once
-- locks nothing; what the database says of itself
SELECT key, value FROM tenure_meta;

-- name: current_read() once
-- locks nothing; how far the counter is, and what tells the database from a copy: of a file only its opener knows that
SELECT (SELECT value FROM tenure_meta WHERE key = 'incarnation'), NULL;

-- name: meta_lock(key) once
-- locks the named row, where there is one: raises of the counter wait for each other
SELECT value FROM tenure_meta WHERE key = :key;

-- name: meta_save(key, value) each
-- writes meta
INSERT INTO tenure_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: meta_delete(key) each
-- writes meta
DELETE FROM tenure_meta WHERE key = :key;

-- name: database_identity(file) once
-- locks nothing; what a restore, a copy or a promotion changes: here the file, which only the opener knows; with the clock
SELECT :file, :now;

-- name: newest_instants() once
-- locks nothing; when the newest job was created, the last claim made, and the tables made
SELECT (SELECT created_at FROM tenure_job ORDER BY job_id DESC LIMIT 1),
    (SELECT max(at) FROM tenure_claim),
    (SELECT applied_at FROM tenure_migration ORDER BY version LIMIT 1);
