-- What grants cannot tell, by triggers: they see who writes what, and a grant sees neither values nor other rows. Installed
-- right after roles.sql and as often as it. They bind whoever has taken on one of the five roles; the owner of the schema,
-- superusers and roles of somebody's own are not asked. Who has several roles may do what any of them may.
-- Conditions stand in WHEN, so that a row which meets none of them calls nothing. A role that is not there, as after a restore
-- on another server, is nobody's: to_regrole gives null for it.

-- Refuses what is here unless one of the roles named behind the words may write it.
CREATE OR REPLACE FUNCTION tenure.refuse_others() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    may text[] := '{}';
BEGIN
    FOR nth IN 1 .. TG_NARGS - 1 LOOP
        may := may || TG_ARGV[nth];
    END LOOP;
    IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE')
        AND EXISTS (
            SELECT FROM unnest(ARRAY['producer', 'worker', 'operator', 'repairer']) AS five (role)
            WHERE pg_has_role(current_user, to_regrole('tenure_' || five.role), 'USAGE'))
        AND NOT EXISTS (SELECT FROM unnest(may) AS one (role) WHERE pg_has_role(current_user, to_regrole('tenure_' || one.role), 'USAGE'))
    THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', DETAIL = 'ROLE_DENIED',
            MESSAGE = TG_ARGV[0] || ': tenure.' || TG_TABLE_NAME || ' is not written so',
            HINT = CASE
                WHEN may = '{}' THEN 'No role may do this.'
                ELSE 'Let this do it, by a verb of tenure: ' || array_to_string(may, ' or ') || '.'
            END;
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

-- --- words of people ---

-- How an effect ended, by word of mouth.
CREATE OR REPLACE TRIGGER no_statement BEFORE INSERT OR UPDATE ON tenure.effect FOR EACH ROW
    WHEN (NEW.settled_by = 'statement')
    EXECUTE FUNCTION tenure.refuse_others('how an effect ended is said by a repairer', 'repairer');
-- What only people and recoveries do. A worker applies the rotations and freezes that its ledger holds.
CREATE OR REPLACE TRIGGER no_statement BEFORE INSERT ON tenure.authority_event FOR EACH ROW
    WHEN (NEW.what IN ('readmitted', 'recovered'))
    EXECUTE FUNCTION tenure.refuse_others('readmission and recovery are a repairer''s', 'repairer');
CREATE OR REPLACE TRIGGER no_thaw BEFORE INSERT ON tenure.authority_event FOR EACH ROW
    WHEN (NEW.what = 'thawed') EXECUTE FUNCTION tenure.refuse_others('a thaw is a person''s', 'operator', 'repairer');
CREATE OR REPLACE TRIGGER no_statement BEFORE INSERT ON tenure.event FOR EACH ROW
    WHEN (
        NEW.name IN ('readmitted', 'suspected', 'suspicion_cleared')
        OR (NEW.name IN ('reconciled', 'effect_settled') AND NEW.data ->> 'by' = 'statement')
    ) EXECUTE FUNCTION tenure.refuse_others('what became of work is said by a repairer', 'repairer');
CREATE OR REPLACE TRIGGER no_decision BEFORE INSERT ON tenure.event FOR EACH ROW
    WHEN (NEW.name IN ('revoked', 'cancel_requested'))
    EXECUTE FUNCTION tenure.refuse_others('revoking and cancelling are an operator''s', 'operator');
CREATE OR REPLACE TRIGGER no_statement BEFORE INSERT ON tenure.message_decision FOR EACH ROW
    WHEN (NEW.decision = 'readmitted')
    EXECUTE FUNCTION tenure.refuse_others('readmission is a repairer''s', 'repairer');
CREATE OR REPLACE TRIGGER no_decision BEFORE INSERT ON tenure.message_decision FOR EACH ROW
    WHEN (NEW.decision <> 'readmitted')
    EXECUTE FUNCTION tenure.refuse_others('replaying and discarding are an operator''s', 'operator');
-- A recovery brings back revocations, and a grant is a decision.
CREATE OR REPLACE TRIGGER no_grant BEFORE INSERT ON tenure.approval FOR EACH ROW
    WHEN (NEW.revoked_at IS NULL) EXECUTE FUNCTION tenure.refuse_others('an approval is granted by an operator', 'operator');

-- --- what does not go back ---

-- Authority may be taken away by whoever applies the ledger, and given back by people alone; an epoch only rises.
CREATE OR REPLACE TRIGGER no_giving_back BEFORE UPDATE ON tenure.authority FOR EACH ROW
    WHEN (OLD.frozen AND NOT NEW.frozen)
    EXECUTE FUNCTION tenure.refuse_others('a thaw is a person''s', 'operator', 'repairer');
CREATE OR REPLACE TRIGGER no_older_epoch BEFORE UPDATE ON tenure.authority FOR EACH ROW
    WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION tenure.refuse_others('an epoch only rises');
-- An operator reopens what a provider refused, and begins and settles nothing.
CREATE OR REPLACE TRIGGER no_settling BEFORE UPDATE ON tenure.effect FOR EACH ROW
    WHEN (
        pg_has_role(current_user, to_regrole('tenure_operator'), 'USAGE')
        AND NOT (OLD.state = 'rejected' AND NEW.state = 'failed_before_dispatch')
        AND (NEW.state, NEW.operation_key, NEW.request_digest, NEW.attempt_id, NEW.generation, NEW.begun_at, NEW.deadline_at,
            NEW.terms, NEW.receipt::text, NEW.settled_at, NEW.settled_by)
        IS DISTINCT FROM (OLD.state, OLD.operation_key, OLD.request_digest, OLD.attempt_id, OLD.generation, OLD.begun_at,
            OLD.deadline_at, OLD.terms, OLD.receipt::text, OLD.settled_at, OLD.settled_by)
    ) EXECUTE FUNCTION tenure.refuse_others('an operator begins and settles no effect', 'worker', 'repairer');
-- After, for a row that is known already is no insert.
CREATE OR REPLACE TRIGGER no_beginning AFTER INSERT ON tenure.effect FOR EACH ROW
    WHEN (pg_has_role(current_user, to_regrole('tenure_operator'), 'USAGE'))
    EXECUTE FUNCTION tenure.refuse_others('an operator begins and settles no effect', 'worker', 'repairer');
-- Uncertain jobs are moved by evidence, which workers and repairers have; of the final ones only the failed come back.
CREATE OR REPLACE TRIGGER no_leaving BEFORE DELETE ON tenure.resting FOR EACH ROW
    WHEN (OLD.status <> 'queued')
    EXECUTE FUNCTION tenure.refuse_others('a job whose outcome is uncertain is moved by evidence', 'worker', 'repairer');
CREATE OR REPLACE TRIGGER no_leaving BEFORE DELETE ON tenure.outcome FOR EACH ROW
    WHEN (OLD.status <> 'failed') EXECUTE FUNCTION tenure.refuse_others('a final job stays so');

-- A suspect job stays so until it is final, or a repairer clears it.
CREATE OR REPLACE FUNCTION tenure.refuse_clearing() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM tenure.outcome o WHERE o.job_id = OLD.job_id AND o.tenant = OLD.tenant AND o.status <> 'failed'
    ) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', DETAIL = 'ROLE_DENIED',
            MESSAGE = 'suspicion of job ' || OLD.job_id || ' is cleared by a repairer',
            HINT = 'Let a repairer do it, by clear_suspicion.';
    END IF;
    RETURN OLD;
END $$;
CREATE OR REPLACE TRIGGER no_clearing BEFORE DELETE ON tenure.suspect FOR EACH ROW
    WHEN ((pg_has_role(current_user, to_regrole('tenure_worker'), 'USAGE')
            OR pg_has_role(current_user, to_regrole('tenure_operator'), 'USAGE'))
        AND NOT pg_has_role(current_user, to_regrole('tenure_repairer'), 'USAGE'))
    EXECUTE FUNCTION tenure.refuse_clearing();
-- Delivered and discarded messages are forgotten whole, or not at all.
CREATE OR REPLACE FUNCTION tenure.refuse_reviving() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
    IF EXISTS (SELECT FROM gone g JOIN tenure.message m ON m.message_id = g.message_id AND m.tenant = g.tenant) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', DETAIL = 'ROLE_DENIED',
            MESSAGE = 'a message that was delivered or discarded stays so',
            HINT = 'Add it again, as a message of its own; prune_messages forgets old ones.';
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER no_leaving AFTER DELETE ON tenure.message_done REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    EXECUTE FUNCTION tenure.refuse_reviving();

-- --- places ---

-- A job or message has one place, and a producer makes new ones. Looked at once for each statement, when all of it is
-- written: an existing job has a place already, in every snapshot, whoever is just moving it. With the rights of the
-- schema's owner, because a producer cannot look, and across tenants, because an id must not be another tenant's either:
-- so the transaction's tenant, which row security goes by, is put aside meanwhile.
-- `new` is for who only produces; what it writes is also held to what create_job would write, for whoever claims it.
CREATE OR REPLACE FUNCTION tenure.refuse_second_place() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE
    odd uuid;
    bound text := nullif(current_setting('tenure.tenant', true), '');
BEGIN
    -- Most statements that may write here put nothing in, and the look below opens seven tables.
    IF NOT EXISTS (SELECT FROM fresh) THEN
        RETURN NULL;
    END IF;
    IF bound IS NOT NULL THEN
        PERFORM set_config('tenure.tenant', '', true);
    END IF;
    IF TG_TABLE_NAME = 'message_order' THEN
        SELECT f.message_id INTO odd FROM fresh f
        WHERE NOT EXISTS (
                SELECT FROM tenure.message m
                WHERE (m.message_id, m.tenant, m.destination, m.subject, m.position, m.ordered)
                    = (f.message_id, f.tenant, f.destination, f.subject, f.position, true)
            )
            OR EXISTS (SELECT FROM tenure.message_done d WHERE d.position = f.position)
        LIMIT 1;
    ELSIF TG_TABLE_NAME LIKE 'message%' AND TG_ARGV[0] = 'new' THEN
        SELECT f.message_id INTO odd FROM fresh f
        WHERE (SELECT count(*) FROM tenure.message_place p WHERE p.position = f.position) <> 1
            OR NOT EXISTS (
                SELECT FROM tenure.message m
                WHERE (m.message_id, m.tenant, m.destination, m.position, f.generation, f.attempt)
                    = (f.message_id, f.tenant, f.destination, f.position, 0, 0)
                    AND f.subject IS NOT DISTINCT FROM CASE WHEN m.ordered THEN m.subject END
                    AND least(f.since, m.scheduled_at, m.created_at) > -62135596800000000
                    AND greatest(f.since, m.scheduled_at, m.created_at) < 253370764800000000
            )
        LIMIT 1;
    ELSIF TG_TABLE_NAME LIKE 'message%' THEN
        SELECT f.message_id INTO odd FROM fresh f
        WHERE (SELECT count(*) FROM tenure.message_place p WHERE p.position = f.position) <> 1 LIMIT 1;
    ELSIF TG_ARGV[0] = 'new' THEN
        SELECT f.job_id INTO odd FROM fresh f
        WHERE (SELECT count(*) FROM tenure.place p WHERE p.job_id = f.job_id) <> 1
            OR (
                SELECT count(*) <> 1 OR bool_and(
                    (j.tenant, j.organization, j.kind, j.queue, f.generation, f.attempt)
                        = (f.tenant, f.organization, f.kind, f.queue, 0, 0)
                    AND least(f.run_at, j.scheduled_at, j.created_at) > -62135596800000000
                    AND greatest(f.run_at, j.scheduled_at, j.created_at) < 253370764800000000
                    AND j.backoff_us <= 3600000000 AND j.lease_us <= 604800000000 AND j.attempts_max <= 10000
                    AND (j.options IS NULL OR (
                        (j.options::json ->> 'escalate_after_us')::numeric BETWEEN 0 AND 8.6e19
                        AND coalesce((j.options::json ->> 'recovery_window_us')::numeric, 0) BETWEEN 0 AND 8.6e19
                        AND coalesce(json_typeof(j.options::json -> 'providers'), 'array') = 'array'
                    ))
                ) IS NOT TRUE
                FROM tenure.job j WHERE j.job_id = f.job_id
            )
        LIMIT 1;
    ELSE
        SELECT f.job_id INTO odd FROM fresh f
        WHERE (SELECT count(*) FROM tenure.place p WHERE p.job_id = f.job_id) <> 1 LIMIT 1;
    END IF;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', DETAIL = 'ROLE_DENIED',
            MESSAGE = CASE TG_ARGV[0]
                WHEN 'new' THEN 'a producer makes new work and moves none: ' || odd || ' is known already, or is not as it should be'
                ELSE odd || ' has another place: what is moved is taken out of the one before it is put into the next'
            END,
            HINT = 'Nothing was written. Use the verbs of tenure, such as create_job, tenure.enqueue and retry_job.';
    END IF;
    IF bound IS NOT NULL THEN
        PERFORM set_config('tenure.tenant', bound, true);
    END IF;
    RETURN NULL;
END $$;

DO $$
DECLARE
    place text;
    owner text := (SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tenure');
BEGIN
    FOREACH place IN ARRAY ARRAY['ready', 'deferred', 'message_due', 'message_later', 'message_order'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER only_new AFTER INSERT ON tenure.%I REFERENCING NEW TABLE AS fresh '
            'FOR EACH STATEMENT WHEN (pg_has_role(current_user, to_regrole(''tenure_producer''), ''USAGE'') '
            'AND NOT pg_has_role(current_user, to_regrole(''tenure_worker''), ''USAGE'') '
            'AND NOT pg_has_role(current_user, to_regrole(''tenure_operator''), ''USAGE'') '
            'AND NOT pg_has_role(current_user, to_regrole(''tenure_repairer''), ''USAGE'')) '
            'EXECUTE FUNCTION tenure.refuse_second_place(''new'')', place);
    END LOOP;
    FOREACH place IN ARRAY ARRAY['ready', 'deferred', 'resting', 'outcome', 'message_due', 'message_later',
        'message_resting', 'message_done'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER one_place AFTER INSERT ON tenure.%I REFERENCING NEW TABLE AS fresh '
            'FOR EACH STATEMENT WHEN ((pg_has_role(current_user, to_regrole(''tenure_operator''), ''USAGE'') '
            'OR pg_has_role(current_user, to_regrole(''tenure_repairer''), ''USAGE'')) '
            'AND NOT pg_has_role(current_user, to_regrole(''tenure_worker''), ''USAGE'')) '
            'EXECUTE FUNCTION tenure.refuse_second_place(''moved'')', place);
    END LOOP;
    -- Also where an administrator runs this: the owner must be able to run it again, and what runs with somebody's rights
    -- runs with the owner's.
    EXECUTE 'ALTER FUNCTION tenure.refuse_others() OWNER TO ' || owner;
    EXECUTE 'ALTER FUNCTION tenure.refuse_clearing() OWNER TO ' || owner;
    EXECUTE 'ALTER FUNCTION tenure.refuse_reviving() OWNER TO ' || owner;
    EXECUTE 'ALTER FUNCTION tenure.refuse_second_place() OWNER TO ' || owner;
END $$;

-- Made here, and for nobody to call.
REVOKE ALL ON FUNCTION tenure.refuse_others(), tenure.refuse_clearing(), tenure.refuse_reviving(), tenure.refuse_second_place()
    FROM PUBLIC;
