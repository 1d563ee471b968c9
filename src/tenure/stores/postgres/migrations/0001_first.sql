-- The first schema. Instants are bigint UTC microseconds; ids are uuid; documents are json as it was sent.
-- A job is in exactly one of ready, deferred, lease, resting, outcome: that row is its place and is what a procedure locks.

CREATE SCHEMA IF NOT EXISTS tenure;

-- The one clock. A test schema replaces it with one that honours the transaction's own setting.
CREATE OR REPLACE FUNCTION tenure.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

CREATE TABLE tenure.meta (key text NOT NULL PRIMARY KEY, value text NOT NULL);

-- Who may act for a tenant; the epoch outlives every job.
CREATE TABLE tenure.authority (
    tenant text NOT NULL PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1 CHECK (epoch >= 1),
    frozen boolean NOT NULL DEFAULT false
);

-- The immutable body: never updated.
CREATE TABLE tenure.job (
    job_id uuid NOT NULL,
    tenant text NOT NULL CHECK (tenant <> ''),
    organization text NOT NULL CHECK (organization <> ''),
    project text NOT NULL CHECK (project <> ''),
    idempotency_key text NOT NULL CHECK (idempotency_key <> ''),
    subject text,
    kind text NOT NULL CHECK (kind <> ''),
    kind_version integer NOT NULL CHECK (kind_version >= 1),
    queue text NOT NULL CHECK (queue <> ''),
    priority integer NOT NULL,
    payload json NOT NULL,
    attempts_max integer NOT NULL CHECK (attempts_max >= 1),
    backoff_us bigint NOT NULL CHECK (backoff_us > 0),
    lease_us bigint NOT NULL CHECK (lease_us > 0),
    scheduled_at bigint NOT NULL CHECK (scheduled_at < 253370764800000000),
    created_at bigint NOT NULL,
    on_reconciled text CHECK (on_reconciled IN ('complete', 'resume')),
    on_declined text NOT NULL CHECK (on_declined IN ('failed', 'dead_letter')),
    options text,
    payload_digest text NOT NULL,
    operation_digest text NOT NULL,
    PRIMARY KEY (job_id, tenant)
);
CREATE INDEX job_scope ON tenure.job (tenant, organization, project, job_id);

-- The idempotency ledger: it may outlive the job.
CREATE TABLE tenure.job_key (
    tenant text NOT NULL,
    project text NOT NULL,
    idempotency_key text NOT NULL,
    job_id uuid NOT NULL,
    organization text NOT NULL,
    kind text NOT NULL,
    payload_digest text NOT NULL,
    PRIMARY KEY (tenant, project, idempotency_key)
);

-- Queues that somebody has said something about; all others are plain.
CREATE TABLE tenure.queue (
    name text NOT NULL PRIMARY KEY CHECK (name <> ''),
    fair boolean NOT NULL,
    -- The lane from which the single claim took last; workers remember their own.
    turn text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE TABLE tenure.queue_weight (
    tenant text NOT NULL CHECK (tenant <> ''),
    queue text NOT NULL CHECK (queue <> ''),
    weight integer NOT NULL CHECK (weight BETWEEN 1 AND 100),
    PRIMARY KEY (tenant, queue)
);

-- Queued and due. `lane` is the tenant on a fair queue and empty on a plain one, decided by the insert.
CREATE TABLE tenure.ready (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    organization text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    lane text NOT NULL,
    priority integer NOT NULL,
    run_at bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    PRIMARY KEY (job_id, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX ready_order ON tenure.ready (queue, lane, priority DESC, run_at, job_id);
-- Nearly always empty: jobs whose worker died are run one by one, and must be found without walking the queue.
CREATE INDEX ready_lost ON tenure.ready (queue, lane, priority DESC, run_at, job_id) WHERE error_code = 'WORKER_LOST';

-- Queued and not yet due: a future row must cost a claim nothing.
CREATE TABLE tenure.deferred (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    organization text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    priority integer NOT NULL,
    run_at bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    error_code text,
    error_message text,
    PRIMARY KEY (job_id, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX deferred_due ON tenure.deferred (run_at, job_id);

-- In flight: one row per claimed or running job.
CREATE TABLE tenure.lease (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    status text NOT NULL CHECK (status IN ('claimed', 'running')),
    worker_id text NOT NULL CHECK (worker_id <> ''),
    attempt_id uuid NOT NULL,
    claim_id uuid,
    expires_at bigint NOT NULL,
    lease_us bigint NOT NULL CHECK (lease_us > 0),
    claimed_at bigint NOT NULL,
    run_at bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 1),
    attempt integer NOT NULL CHECK (attempt >= 1),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    cancel_requested_at bigint,
    cancel_reason text,
    progress text,
    error_code text,
    error_message text,
    command_id uuid,
    PRIMARY KEY (job_id, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);

-- Not offered to workers: queued but parked, indeterminate, timed out.
CREATE TABLE tenure.resting (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    status text NOT NULL CHECK (status IN ('queued', 'indeterminate', 'timed_out')),
    parked text,
    organization text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    priority integer NOT NULL,
    run_at bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    cancel_requested_at bigint,
    cancel_reason text,
    error_code text,
    error_message text,
    finished_at bigint,
    PRIMARY KEY (job_id, tenant),
    CHECK (status <> 'queued' OR (cancel_requested_at IS NULL AND finished_at IS NULL AND parked IS NOT NULL)),
    CHECK (status = 'queued' OR finished_at IS NOT NULL)
);
CREATE INDEX resting_status ON tenure.resting (status, kind);

-- Terminal facts: inserted, and deleted by a retry or a resume; never updated.
CREATE TABLE tenure.outcome (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    status text NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled', 'dead_letter', 'halt_unsafe')),
    run_at bigint NOT NULL,
    generation bigint NOT NULL CHECK (generation >= 0),
    attempt integer NOT NULL CHECK (attempt >= 0),
    attempts_max integer NOT NULL,
    epoch bigint NOT NULL,
    result json,
    cancel_requested_at bigint,
    cancel_reason text,
    error_code text,
    error_message text,
    finished_at bigint NOT NULL,
    PRIMARY KEY (job_id, tenant),
    CHECK (status <> 'completed' OR error_code IS NULL),
    CHECK (status = 'completed' OR result IS NULL),
    CHECK (status IN ('completed', 'cancelled') OR error_code IS NOT NULL)
);

-- The trail: append-only.
CREATE TABLE tenure.event (
    event_id bigint GENERATED ALWAYS AS IDENTITY,
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    at bigint NOT NULL,
    generation bigint NOT NULL,
    status text,
    actor text,
    data json,
    command_id uuid,
    PRIMARY KEY (job_id, event_id, tenant)
);

-- Outside acts; the bare dispatch mark is the row without a name.
CREATE TABLE tenure.effect (
    tenant text NOT NULL,
    job_id uuid NOT NULL,
    name text NOT NULL,
    state text NOT NULL
        CHECK (state IN ('pending', 'succeeded', 'failed_before_dispatch', 'rejected', 'unknown', 'closed')),
    operation_key text NOT NULL CHECK (operation_key <> ''),
    request_digest text NOT NULL,
    attempt_id uuid NOT NULL,
    generation bigint NOT NULL,
    created_at bigint NOT NULL,
    begun_at bigint NOT NULL,
    deadline_at bigint NOT NULL,
    terms text,
    receipt json,
    reason text,
    settled_at bigint,
    settled_by text,
    ordinal integer NOT NULL,
    lookups integer NOT NULL,
    asked_at bigint,
    PRIMARY KEY (tenant, job_id, name),
    CHECK ((state IN ('pending', 'unknown')) = (settled_at IS NULL)),
    CHECK (state <> 'closed' OR name = '')
);
CREATE UNIQUE INDEX effect_key ON tenure.effect (tenant, operation_key);
CREATE INDEX effect_job ON tenure.effect (job_id);
CREATE INDEX effect_open ON tenure.effect (tenant, job_id) WHERE state IN ('pending', 'unknown');

-- Every intent ever committed, so that a late receipt can be matched to it.
CREATE TABLE tenure.intent (
    tenant text NOT NULL,
    operation_key text NOT NULL,
    attempt_id uuid NOT NULL,
    job_id uuid NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (operation_key, attempt_id, tenant, at)
);

CREATE TABLE tenure.evidence (
    evidence_id uuid NOT NULL PRIMARY KEY,
    tenant text NOT NULL,
    job_id uuid NOT NULL,
    operation_key text NOT NULL,
    attempt_id uuid,
    kind text NOT NULL CHECK (kind IN ('accepted', 'declined', 'absent', 'not_sent')),
    receipt json,
    reason text,
    at bigint NOT NULL,
    contradicts boolean NOT NULL,
    used boolean NOT NULL
);
CREATE INDEX evidence_job ON tenure.evidence (job_id);

-- Jobs that wait for a person, in any status.
CREATE TABLE tenure.escalation (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    escalated_at bigint NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (job_id, tenant)
);

-- One row for a claim that took something, so that a claim whose reply was lost can be asked again.
CREATE TABLE tenure.claim (
    claim_id uuid NOT NULL PRIMARY KEY,
    worker_id text NOT NULL,
    scope text NOT NULL,
    at bigint NOT NULL
);
CREATE INDEX claim_age ON tenure.claim (at);

-- Which kinds live workers know; rows whose kind nobody announces are parked.
CREATE TABLE tenure.announcement (
    worker_id text NOT NULL PRIMARY KEY,
    kinds text[] NOT NULL,
    expires_at bigint NOT NULL
);

CREATE VIEW tenure.place AS
SELECT 'ready'::text AS place, job_id, tenant, 'queued'::text AS status, generation, attempt, attempts_max, epoch, run_at,
    NULL::text AS worker_id, NULL::uuid AS attempt_id, NULL::bigint AS expires_at, NULL::bigint AS lease_us,
    NULL::bigint AS claimed_at,
    NULL::bigint AS cancel_requested_at, NULL::text AS cancel_reason, NULL::text AS progress, NULL::text AS parked,
    NULL::text AS result,
    error_code, error_message, NULL::bigint AS finished_at, NULL::uuid AS command_id
FROM tenure.ready
UNION ALL
SELECT 'deferred', job_id, tenant, 'queued', generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, error_code, error_message, NULL, NULL
FROM tenure.deferred
UNION ALL
SELECT 'lease', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    worker_id, attempt_id, expires_at, lease_us, claimed_at, cancel_requested_at, cancel_reason, progress,
    NULL, NULL, error_code, error_message, NULL, command_id
FROM tenure.lease
UNION ALL
SELECT 'resting', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, parked, NULL,
    error_code, error_message, finished_at, NULL
FROM tenure.resting
UNION ALL
SELECT 'outcome', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, NULL, result::text,
    error_code, error_message, finished_at, NULL
FROM tenure.outcome;
