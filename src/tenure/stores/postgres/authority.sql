-- The PostgreSQL store's statements about who may act: epochs, freezes, held work, and what tells one database from its
-- copy, in the order of the SQLite twin.

-- name: authority_exclusive(tenant) each
-- locks the authority rows of these tenants, alone, in order: waits for every fenced write that has them shared
WITH locked AS MATERIALIZED (
    SELECT a.tenant, a.epoch, a.frozen FROM tenure.authority a
    WHERE a.tenant = ANY(%(tenant)b::text[]) ORDER BY a.tenant FOR UPDATE
)
SELECT l.tenant, l.epoch, l.frozen, EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM locked l ORDER BY l.tenant;

-- name: authority_save(tenant, epoch, frozen) each
-- writes authority
INSERT INTO tenure.authority (tenant, epoch, frozen)
SELECT tenant, epoch, frozen FROM unnest(%(tenant)b::text[], %(epoch)b::bigint[], %(frozen)b::boolean[]) AS given (tenant, epoch, frozen)
ORDER BY tenant
ON CONFLICT (tenant) DO UPDATE SET epoch = excluded.epoch, frozen = excluded.frozen;

-- name: authority_list(tenant) once
-- locks nothing; every tenant with its epoch and freeze, by name
SELECT a.tenant, a.epoch, a.frozen, EXISTS (SELECT 1 FROM tenure.meta WHERE key = 'frozen'), tenure.now_us()
FROM tenure.authority a WHERE %(tenant)b::text IS NULL OR a.tenant = %(tenant)b ORDER BY a.tenant;

-- name: authority_event_insert(act_id, tenant, what, epoch, actor, reason, at) each
-- writes authority_event; the same act is written once, however often it is applied
INSERT INTO tenure.authority_event (act_id, tenant, what, epoch, actor, reason, at)
SELECT act_id, tenant, what, epoch, actor, reason, at
FROM unnest(%(act_id)b::uuid[], %(tenant)b::text[], %(what)b::text[], %(epoch)b::bigint[], %(actor)b::text[], %(reason)b::text[], %(at)b::bigint[])
    AS given (act_id, tenant, what, epoch, actor, reason, at)
ON CONFLICT DO NOTHING;

-- name: authority_event_known(act_id) once
-- locks nothing; the act, where it was done already
SELECT tenant, what, epoch FROM tenure.authority_event WHERE act_id = %(act_id)b;

-- name: authority_event_list(tenant, limit) once
-- locks nothing; the last acts on a tenant, newest first
SELECT tenant, what, epoch, actor, reason, at FROM tenure.authority_event
WHERE tenant = %(tenant)b ORDER BY at DESC, act_id DESC LIMIT %(limit)b;

-- name: held_list(tenant, epoch, current, limit) once
-- locks nothing; queued jobs of a tenant under an older epoch than the current one, or under the one given, oldest first
SELECT job_id FROM (
    SELECT job_id, epoch FROM tenure.ready WHERE tenant = %(tenant)b AND epoch < %(current)b
    UNION ALL
    SELECT job_id, epoch FROM tenure.deferred WHERE tenant = %(tenant)b AND epoch < %(current)b
    UNION ALL
    SELECT job_id, epoch FROM tenure.resting WHERE status = 'queued' AND tenant = %(tenant)b AND epoch < %(current)b
) held WHERE %(epoch)b::bigint IS NULL OR epoch = %(epoch)b
ORDER BY job_id LIMIT %(limit)b;

-- name: held_count(tenant) once
-- locks nothing; how many queued jobs of each epoch a tenant has
SELECT epoch, count(*) FROM (
    SELECT epoch FROM tenure.ready WHERE tenant = %(tenant)b
    UNION ALL
    SELECT epoch FROM tenure.deferred WHERE tenant = %(tenant)b
    UNION ALL
    SELECT epoch FROM tenure.resting WHERE status = 'queued' AND tenant = %(tenant)b
) held GROUP BY epoch ORDER BY epoch;

-- name: meta_list() once
-- locks nothing; what the database says of itself
SELECT key, value FROM tenure.meta;

-- name: current_read() once
-- locks nothing; how far the counter is, and what tells the database from a copy, as database_identity has it
SELECT (SELECT value FROM tenure.meta WHERE key = 'incarnation'),
    'postgresql:' || (SELECT system_identifier FROM pg_control_system())
    || ':' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    || ':' || (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: meta_lock(key) once
-- locks the named row, where there is one: raises of the counter wait for each other
SELECT value FROM tenure.meta WHERE key = %(key)b FOR UPDATE;

-- name: meta_save(key, value) each
-- writes meta
INSERT INTO tenure.meta (key, value)
SELECT key, value FROM unnest(%(key)b::text[], %(value)b::text[]) AS given (key, value) ORDER BY key
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: meta_delete(key) each
-- writes meta
DELETE FROM tenure.meta WHERE key = ANY(%(key)b::text[]);

-- name: database_identity(file) once
-- locks nothing; what a restore, a copy or a promotion changes: cluster, timeline, database; with the clock
SELECT COALESCE(%(file)b::text, '') || 'postgresql:' || (SELECT system_identifier FROM pg_control_system())
    || ':' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    || ':' || (SELECT oid FROM pg_database WHERE datname = current_database()),
    tenure.now_us();

-- name: newest_instants() once
-- locks nothing; when the newest job was created, the last claim made, and the tables made
SELECT (SELECT created_at FROM tenure.job ORDER BY job_id DESC LIMIT 1),
    (SELECT max(at) FROM tenure.claim),
    (SELECT applied_at_us FROM tenure.migration ORDER BY version LIMIT 1);
