-- What hand-written SQL must not do, whoever writes it; what a role must not do is in role_guards.sql. And what a producer
-- is told of a key, without reading the digests of what others stored.

-- An effect that may have happened keeps its key, and one that has happened stays so; an approval that was used or revoked
-- stays so, and stays about the same action. The library asks for none of this, so the condition is all that it costs.
CREATE FUNCTION tenure.refuse_undoing() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'restrict_violation', DETAIL = 'NOT_UNDONE', MESSAGE = TG_ARGV[0],
        HINT = 'Nothing was written. The verbs of tenure lead on from here: reconcile_dispatched, retry_job, grant_approval.';
END $$;
CREATE TRIGGER no_undoing BEFORE UPDATE ON tenure.effect FOR EACH ROW
    WHEN (
        (OLD.state = 'succeeded' AND NEW.state <> 'succeeded')
        OR (OLD.state IN ('pending', 'unknown', 'succeeded') AND NEW.operation_key <> OLD.operation_key)
    ) EXECUTE FUNCTION tenure.refuse_undoing('an effect that may have happened keeps its key, and one that has happened stays so');
CREATE TRIGGER no_undoing BEFORE UPDATE ON tenure.approval FOR EACH ROW
    WHEN (
        NEW.action_digest <> OLD.action_digest
        OR (OLD.consumed_at IS NOT NULL AND (NEW.consumed_by, NEW.consumed_at) IS DISTINCT FROM (OLD.consumed_by, OLD.consumed_at))
        OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL)
    ) EXECUTE FUNCTION tenure.refuse_undoing('an approval is about one action, and stays used up or revoked once it is');

-- Whose a key is, and in what it differs from what is presented: nothing of what was stored is given out. Runs with the
-- rights of whoever owns the schema.
CREATE FUNCTION tenure.known_keys(
    tenants text[], projects text[], keys text[], organizations text[], kinds text[], digests text[]
) RETURNS TABLE (tenant text, project text, idempotency_key text, job_id uuid, differs text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
SELECT k.tenant, k.project, k.idempotency_key, k.job_id, CASE
        WHEN k.organization <> g.organization THEN 'organization'
        WHEN k.kind <> g.kind THEN 'kind'
        WHEN k.payload_digest <> g.digest THEN 'payload'
    END
FROM unnest(known_keys.tenants, known_keys.projects, known_keys.keys, known_keys.organizations, known_keys.kinds, known_keys.digests)
    AS g (tenant, project, idempotency_key, organization, kind, digest)
JOIN tenure.job_key k USING (tenant, project, idempotency_key)
WHERE k.tenant = current_setting('tenure.tenant', true) OR tenure.every_tenant()
$$;

-- As before, but for whose the key is it asks the function above.
CREATE OR REPLACE FUNCTION tenure.enqueue(
    organization text,
    project text,
    idempotency_key text,
    kind text,
    payload json,
    kind_version integer DEFAULT 1,
    tenant text DEFAULT NULL,
    subject text DEFAULT NULL,
    queue text DEFAULT 'default',
    priority integer DEFAULT 0,
    max_attempts integer DEFAULT 3,
    backoff_base interval DEFAULT '30 seconds',
    lease_duration interval DEFAULT '60 seconds',
    scheduled_at timestamptz DEFAULT NULL,
    on_reconciled text DEFAULT NULL,
    on_declined text DEFAULT 'failed',
    actor text DEFAULT NULL,
    trace text DEFAULT NULL
) RETURNS TABLE (job_id uuid, created boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER ROWS 1
SET search_path = pg_catalog, pg_temp
SET extra_float_digits = 1
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    owner text;
    sent text := payload::text;
    mark text;
    marks text;
    marked boolean := false;
    walked text;
    members text[];  -- in canonical form: those before the envelope, and those after it
    sealed text;  -- the envelope in canonical form
    payload_hash text;
    backoff_us numeric := extract(epoch FROM backoff_base) * 1000000;
    lease_us numeric := extract(epoch FROM lease_duration) * 1000000;
    due bigint;
    now_us bigint;
    clock_us bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    epoch bigint;
    id uuid;
    known record;
    checked text;
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported', MESSAGE =
            'tenure.enqueue needs a database with the encoding UTF8, this one has ' || getdatabaseencoding(),
            HINT = 'Create jobs with the library, or move to a database with UTF8.';
    END IF;
    -- The first thing that is wrong, in the order in which create_job looks.
    checked := tenure.enqueue_name('organization', organization);
    checked := tenure.enqueue_name('project', project);
    checked := tenure.enqueue_name('idempotency_key', idempotency_key);
    checked := tenure.enqueue_name('kind', kind);
    checked := tenure.enqueue_name('queue', queue);
    IF strpos(kind, ':') > 0 OR strpos(kind, '#') > 0 THEN
        checked := tenure.enqueue_refuse('BAD_ARGUMENT', 'a kind holds no '':'' or ''#'', they separate operation keys');
    END IF;
    IF subject IS NOT NULL THEN
        checked := tenure.enqueue_name('subject', subject);
    END IF;
    owner := organization;
    IF tenant IS NOT NULL THEN
        owner := tenure.enqueue_name('tenant', tenure.enqueue_said('tenant of the argument', tenant));
    END IF;
    checked := CASE
        WHEN kind_version IS NULL OR kind_version < 1
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'kind_version must be a whole number from 1')
        WHEN priority IS NULL OR priority NOT BETWEEN -32767 AND 32767
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'priority must be a whole number from -32767 to 32767')
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 10000
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'max_attempts must be a whole number from 1 to 10000')
        WHEN on_reconciled NOT IN ('complete', 'resume')
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'on_reconciled must be complete, resume or left out')
        WHEN on_declined IS NULL OR on_declined NOT IN ('failed', 'dead_letter')
            THEN tenure.enqueue_refuse('BAD_ARGUMENT', 'on_declined must be failed or dead_letter')
        WHEN backoff_us IS NULL OR backoff_us NOT BETWEEN 1000 AND 3600000000
            THEN tenure.enqueue_refuse('BAD_DURATION', 'backoff_base must be from 1 millisecond to 1 hour')
        WHEN lease_us IS NULL OR lease_us NOT BETWEEN 100000 AND 604800000000
            THEN tenure.enqueue_refuse('BAD_DURATION', 'lease_duration must be from 100 milliseconds to 7 days')
        WHEN scheduled_at < timestamptz '0001-01-01 00:00:00+00' OR scheduled_at >= timestamptz '9999-01-01 00:00:00+00'
            THEN tenure.enqueue_refuse('BAD_INSTANT', 'scheduled_at must be in the years 1 to 9998')
    END;

    IF payload IS NULL OR json_typeof(payload) <> 'object' THEN
        checked := tenure.enqueue_refuse('PAYLOAD_INVALID', 'the payload must be a JSON object');
    ELSIF octet_length(sent) > 1048576 THEN
        checked := tenure.enqueue_refuse('PAYLOAD_TOO_LARGE', '$ has ' || octet_length(sent)
            || ' bytes, the limit is 1048576; store it elsewhere and pass a reference');
    ELSIF sent ~ E'\\\\u(0000|[dD][89a-fA-F])' THEN
        -- The server reads neither NUL nor half characters: two characters that mean nothing and the digits take the place
        -- of each, so that the walk below can say where it is. First an escaped backslash is spelt in another way, so that
        -- nothing behind one looks like them.
        mark := chr(1114111) || chr(1114110);
        marks := replace(translate(sent, chr(1114110), chr(1114109)), E'\\\\', E'\\u005c');
        marks := regexp_replace(marks, E'\\\\u(0000|[dD][89abAB][0-9a-fA-F]{2}(?!\\\\u[dD][c-fC-F]))', mark || E'\\1', 'g');
        marks := regexp_replace(marks, E'(?<!\\\\u[dD][89abAB][0-9a-fA-F]{2})\\\\u([dD][c-fC-F][0-9a-fA-F]{2})',
            mark || E'\\1', 'g');
        marked := strpos(marks, mark) > 0;
    END IF;
    walked := tenure.enqueue_canonical(CASE WHEN marked THEN marks::json ELSE payload END, '{}', marked);
    IF EXISTS (SELECT FROM json_object_keys(payload) AS one WHERE one IN ('execution', 'governance')) THEN
        checked := tenure.enqueue_refuse('RESERVED_KEY',
            'the payload has the reserved key execution or governance; pass actor and trace instead');
    END IF;
    members := string_to_array(substr(walked, 2, length(walked) - 2), E'\x01');
    payload_hash := 'v1:' || encode(sha256(convert_to('{"kind":' || to_json(kind)::text || ',"payload":{'
        || concat_ws(',', nullif(members[1], ''), nullif(members[2], '')) || '}}', 'UTF8')), 'hex');
    id := (lpad(to_hex(clock_us / 1000), 12, '0') || '7' || lpad(to_hex(clock_us % 1000 * 4096 / 1000), 3, '0')
        || substr(gen_random_uuid()::text, 20))::uuid;
    IF (actor IS NULL) <> (trace IS NULL) THEN
        checked := tenure.enqueue_refuse('ENVELOPE_VALUE',
            'give actor and trace together: with one of them no effect is dispatched');
    ELSIF actor IS NOT NULL THEN
        checked := tenure.enqueue_said('execution.actor', actor);
        checked := tenure.enqueue_said('execution.trace', trace);
        sent := CASE walked WHEN E'{\x01}' THEN '{' ELSE left(rtrim(sent, E' \t\n\r'), -1) || ',' END
            || '"execution":{"tenant":' || to_json(owner)::text || ',"organization":' || to_json(organization)::text
            || ',"project":' || to_json(project)::text || ',"job":"' || id || '","actor":' || to_json(actor)::text
            || ',"trace":' || to_json(trace)::text || '}}';
        sealed := '"execution":{"actor":' || to_json(actor)::text || ',"job":"' || id
            || '","organization":' || to_json(organization)::text || ',"project":' || to_json(project)::text
            || ',"tenant":' || to_json(owner)::text || ',"trace":' || to_json(trace)::text || '}';
        IF octet_length(sent) > 1048576 THEN
            checked := tenure.enqueue_refuse('PAYLOAD_TOO_LARGE', '$ has ' || octet_length(sent)
                || ' bytes, the limit is 1048576; store it elsewhere and pass a reference');
        END IF;
    END IF;

    INSERT INTO tenure.authority (tenant)
    SELECT owner WHERE NOT EXISTS (SELECT FROM tenure.authority a WHERE a.tenant = owner)
    ON CONFLICT DO NOTHING;
    SELECT a.epoch, tenure.now_us() INTO epoch, now_us FROM tenure.authority a WHERE a.tenant = owner;
    IF FOUND THEN
        INSERT INTO tenure.job_key (tenant, project, idempotency_key, job_id, organization, kind, payload_digest)
        VALUES (owner, project, idempotency_key, id, organization, kind, payload_hash)
        ON CONFLICT DO NOTHING;
        created := FOUND;
    END IF;
    IF created IS NOT TRUE THEN
        SELECT k.job_id, k.differs INTO known
        FROM tenure.known_keys(ARRAY[owner], ARRAY[project], ARRAY[idempotency_key], ARRAY[organization], ARRAY[kind],
            ARRAY[payload_hash]) k;
        IF NOT FOUND THEN
            -- Another transaction's, which this one's snapshot cannot see (repeatable read).
            RAISE EXCEPTION USING ERRCODE = 'TNUNA', DETAIL = 'KEY_BUSY', HINT = 'Run your transaction again.', MESSAGE =
                'idempotency key ' || quote_literal(idempotency_key) || ' is being written by another transaction';
        ELSIF known.differs IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'TNCON', DETAIL = 'IDEMPOTENCY_MISMATCH',
                HINT = 'Use another key for another meaning; nothing was written.',
                MESSAGE = 'idempotency key ' || quote_literal(idempotency_key) || ' of project ' || quote_literal(project)
                    || ' belongs to job ' || known.job_id || ' with another ' || known.differs;
        END IF;
        job_id := known.job_id;
        RETURN NEXT;
        RETURN;
    END IF;

    IF EXISTS (SELECT FROM tenure.queue q WHERE q.name = queue AND q.draining_at IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'TNREF', DETAIL = 'QUEUE_DRAINING',
            HINT = 'Enqueue again once it was transferred or resumed, or into another queue; nothing was written.',
            MESSAGE = 'queue ' || quote_literal(queue) || ' is being drained and takes no new jobs';
    END IF;

    due := coalesce((extract(epoch FROM scheduled_at) * 1000000)::bigint, now_us);
    INSERT INTO tenure.job (job_id, tenant, organization, project, idempotency_key, subject, kind, kind_version, queue, priority,
        payload, attempts_max, backoff_us, lease_us, scheduled_at, created_at, on_reconciled, on_declined, payload_digest,
        operation_digest)
    VALUES (id, owner, organization, project, idempotency_key, subject, kind, kind_version, queue, priority, sent::json,
        max_attempts, backoff_us, lease_us, due, now_us, on_reconciled, on_declined, payload_hash,
        'v1:' || encode(sha256(convert_to('{"epoch":' || epoch || ',"job":"' || id || '","kind":' || to_json(kind)::text
            || ',"kind_version":' || kind_version || ',"payload":{'
            || concat_ws(',', nullif(members[1], ''), sealed, nullif(members[2], ''))
            || '},"tenant":' || to_json(owner)::text || '}', 'UTF8')), 'hex'));
    IF due <= now_us THEN
        INSERT INTO tenure.ready (job_id, tenant, organization, kind, queue, lane, priority, run_at, generation, attempt,
            attempts_max, epoch)
        VALUES (id, owner, organization, kind, queue,
            CASE WHEN EXISTS (SELECT FROM tenure.queue q WHERE q.name = queue AND q.fair) THEN owner ELSE '' END,
            priority, due, 0, 0, max_attempts, epoch);
    ELSE
        INSERT INTO tenure.deferred (job_id, tenant, organization, kind, queue, priority, run_at, generation, attempt,
            attempts_max, epoch)
        VALUES (id, owner, organization, kind, queue, priority, due, 0, 0, max_attempts, epoch);
    END IF;
    job_id := id;
    RETURN NEXT;
END $$;
