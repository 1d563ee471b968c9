-- The five database roles and what each may do, as rules/roles.py has it. Installed by `tenure migrate --roles`, and again
-- by every later migration, so that new tables are granted too; may be run any number of times. Run it as whoever owns the
-- schema, with CREATEROLE or on a server that has the roles already. Roles belong to the server, grants to this database.
-- A login takes one on when an administrator says so: GRANT tenure_worker TO some_login.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['viewer', 'producer', 'worker', 'operator', 'repairer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'tenure_' || name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', 'tenure_' || name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- the migration of another database on this server was faster
            END;
        END IF;
    END LOOP;
END $$;

-- Nothing that is not said below. A table's columns go with it.
REVOKE ALL ON SCHEMA tenure FROM PUBLIC, tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;
REVOKE ALL ON ALL TABLES IN SCHEMA tenure
    FROM PUBLIC, tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA tenure
    FROM PUBLIC, tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure
    FROM PUBLIC, tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;

GRANT USAGE ON SCHEMA tenure TO tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;
GRANT EXECUTE ON FUNCTION tenure.now_us(), tenure.every_tenant()
    TO tenure_viewer, tenure_producer, tenure_worker, tenure_operator, tenure_repairer;

-- A lock needs the right to change something of the row, if only its name; and names are not changed by anybody.
CREATE OR REPLACE FUNCTION tenure.refuse_rename() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
        MESSAGE = 'rows of tenure.' || TG_TABLE_NAME || ' keep their names', DETAIL = 'ROLE_DENIED';
END $$;

DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM (VALUES
        ('authority', 'tenant'), ('job', 'job_id'), ('ready', 'job_id'), ('deferred', 'job_id'), ('lease', 'job_id'),
        ('resting', 'job_id'), ('outcome', 'job_id'), ('approval', 'reference'), ('queue', 'name'), ('meta', 'key'),
        ('message_due', 'position'), ('message_later', 'position'), ('message_lease', 'position'),
        ('message_resting', 'position'), ('message_done', 'position'), ('message_order', 'position')
    ) AS named (of_table, of_column) LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER keep_name BEFORE UPDATE OF %I ON tenure.%I FOR EACH ROW '
            'WHEN (OLD.%1$I IS DISTINCT FROM NEW.%1$I) EXECUTE FUNCTION tenure.refuse_rename()', one.of_column, one.of_table);
    END LOOP;
END $$;

-- Also where an administrator runs this: the owner must be able to run it again.
DO $$
DECLARE
    owner text := (SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tenure');
BEGIN
    EXECUTE 'ALTER FUNCTION tenure.refuse_rename() OWNER TO ' || owner;
END $$;

-- Made by an earlier release; role_guards.sql has what took its place.
DROP FUNCTION IF EXISTS tenure.refuse_worker() CASCADE;

-- --- viewer: everything, and nothing else ---

GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO tenure_viewer, tenure_worker, tenure_operator, tenure_repairer;

-- --- producer: writes jobs and messages, and reads neither ---

GRANT SELECT ON tenure.migration, tenure.meta, tenure.authority, tenure.queue TO tenure_producer, tenure_worker;
GRANT INSERT (tenant) ON tenure.authority TO tenure_producer, tenure_worker, tenure_operator, tenure_repairer;
-- Of a key the id of its job, which an insert gives back, and not the digest: whoever presents that is shown the job.
GRANT INSERT, SELECT (job_id) ON tenure.job_key TO tenure_producer, tenure_worker;
GRANT INSERT ON tenure.job, tenure.ready, tenure.deferred TO tenure_producer, tenure_worker;
GRANT EXECUTE ON FUNCTION tenure.known_keys, tenure.known_places, tenure.known_effects, tenure.known_notes, tenure.enqueue,
    tenure.enqueue_refuse, tenure.enqueue_path, tenure.enqueue_refuse_at, tenure.enqueue_number, tenure.enqueue_canonical,
    tenure.enqueue_value, tenure.enqueue_printable, tenure.enqueue_name, tenure.enqueue_said
    TO tenure_producer, tenure_worker;
-- Of a message all but its data; what it is and where it goes must be known to tell a repetition from a conflict.
GRANT SELECT (message_id, tenant, destination, operation, type, version, subject, ordered, attempts_max,
    scheduled_at, created_at, digest, position) ON tenure.message TO tenure_producer;
-- And all but its position, which is the database's to give: it is an order.
GRANT INSERT (message_id, tenant, destination, operation, type, version, subject, ordered, data, attempts_max,
    scheduled_at, created_at, digest) ON tenure.message TO tenure_producer;
GRANT INSERT ON tenure.message TO tenure_worker;
GRANT INSERT ON tenure.message_due, tenure.message_later, tenure.message_order TO tenure_producer, tenure_worker;
GRANT SELECT (message_id, tenant, position, epoch) ON tenure.message_due, tenure.message_later, tenure.message_lease,
    tenure.message_resting, tenure.message_done TO tenure_producer;
GRANT SELECT ON tenure.message_known TO tenure_producer;
-- Consumers are producers of what follows.
GRANT SELECT, INSERT, UPDATE (replay_window_us, retention_us) ON tenure.inbox_consumer TO tenure_producer, tenure_worker;
GRANT SELECT, INSERT ON tenure.inbox, tenure.inbox_delivery TO tenure_producer, tenure_worker;
GRANT UPDATE (seen, seen_at) ON tenure.inbox TO tenure_producer, tenure_worker;

-- --- worker, operator and repairer: lock and move jobs ---

GRANT UPDATE (tenant) ON tenure.authority TO tenure_worker, tenure_operator, tenure_repairer;
GRANT UPDATE (job_id) ON tenure.job, tenure.ready, tenure.deferred, tenure.resting, tenure.outcome
    TO tenure_worker, tenure_operator, tenure_repairer;
GRANT INSERT, DELETE ON tenure.ready, tenure.deferred, tenure.resting, tenure.outcome
    TO tenure_worker, tenure_operator, tenure_repairer;
-- Whose a lease is, and of which generation, is written once.
GRANT DELETE, UPDATE (status, expires_at, cancel_requested_at, cancel_reason, progress) ON tenure.lease
    TO tenure_worker, tenure_operator, tenure_repairer;
GRANT INSERT ON tenure.event TO tenure_worker, tenure_operator, tenure_repairer;
GRANT INSERT, UPDATE (state, operation_key, request_digest, attempt_id, generation, created_at, begun_at, deadline_at, terms,
    receipt, reason, settled_at, settled_by, ordinal, lookups, asked_at) ON tenure.effect
    TO tenure_worker, tenure_operator, tenure_repairer;
GRANT INSERT, DELETE, UPDATE (escalated_at, reason) ON tenure.escalation TO tenure_worker, tenure_operator, tenure_repairer;
GRANT DELETE ON tenure.suspect TO tenure_worker, tenure_operator, tenure_repairer;
-- The opener of a store freezes what looks like a copy.
GRANT INSERT, UPDATE (value) ON tenure.meta TO tenure_worker, tenure_operator, tenure_repairer;
GRANT UPDATE (reference) ON tenure.approval TO tenure_worker, tenure_operator, tenure_repairer;

-- --- worker: claims, effects and the loops ---

GRANT INSERT ON tenure.lease, tenure.intent TO tenure_worker;
GRANT UPDATE (command_id) ON tenure.lease TO tenure_worker;
GRANT INSERT, UPDATE (contradicts, used) ON tenure.evidence TO tenure_worker;
GRANT INSERT, DELETE ON tenure.claim TO tenure_worker;
GRANT INSERT, UPDATE, DELETE ON tenure.announcement, tenure.message_relay TO tenure_worker;
GRANT INSERT ON tenure.known_kind TO tenure_worker;
GRANT UPDATE (turn) ON tenure.queue TO tenure_worker;
GRANT UPDATE (consumed_by, consumed_at) ON tenure.approval TO tenure_worker;
GRANT INSERT (epoch, frozen), UPDATE (epoch, frozen) ON tenure.authority TO tenure_worker;
GRANT INSERT ON tenure.authority_event TO tenure_worker;
GRANT DELETE, UPDATE (position) ON tenure.message_due, tenure.message_later, tenure.message_lease, tenure.message_resting,
    tenure.message_done, tenure.message_order TO tenure_worker;
GRANT INSERT ON tenure.message_lease, tenure.message_resting, tenure.message_done TO tenure_worker;
GRANT DELETE ON tenure.message, tenure.message_decision, tenure.inbox, tenure.inbox_delivery TO tenure_worker;

-- --- operator: decides ---

GRANT INSERT (epoch, frozen), UPDATE (epoch, frozen) ON tenure.authority TO tenure_operator;
GRANT INSERT ON tenure.authority_event TO tenure_operator;
GRANT INSERT, UPDATE ON tenure.queue TO tenure_operator;
GRANT INSERT, DELETE ON tenure.queue_weight TO tenure_operator;
GRANT INSERT ON tenure.queue_change, tenure.message_decision TO tenure_operator;
GRANT INSERT ON tenure.approval TO tenure_operator;
GRANT UPDATE (revoked_at, revoked_by, revoke_reason) ON tenure.approval TO tenure_operator;
GRANT INSERT, DELETE, UPDATE (position) ON tenure.message_due, tenure.message_later, tenure.message_resting,
    tenure.message_done, tenure.message_order TO tenure_operator;
GRANT DELETE ON tenure.message, tenure.message_decision, tenure.inbox, tenure.inbox_delivery TO tenure_operator;
GRANT UPDATE (seen) ON tenure.inbox TO tenure_operator;

-- --- repairer: says what became of it ---

GRANT INSERT (epoch, frozen), UPDATE (epoch, frozen) ON tenure.authority TO tenure_repairer;
GRANT INSERT ON tenure.authority_event, tenure.message_decision TO tenure_repairer;
GRANT UPDATE (epoch) ON tenure.message_due, tenure.message_later, tenure.message_resting TO tenure_repairer;
GRANT INSERT, UPDATE (contradicts, used) ON tenure.evidence TO tenure_repairer;
GRANT INSERT, UPDATE (marked_at, since, generation, actor, reason, recovery_id) ON tenure.suspect TO tenure_repairer;
GRANT DELETE ON tenure.meta TO tenure_repairer;
GRANT INSERT ON tenure.approval TO tenure_repairer;
GRANT UPDATE (revoked_at, revoked_by, revoke_reason) ON tenure.approval TO tenure_repairer;
