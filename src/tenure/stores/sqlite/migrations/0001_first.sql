-- The first schema. Instants are integer UTC microseconds; ids are text; documents are JSON text as it was sent.
-- A job is in exactly one of ready, deferred, lease, resting, outcome: that row is its place and is what a procedure locks.

CREATE TABLE tenure_meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- Who may act for a tenant; the epoch outlives every job.
CREATE TABLE tenure_authority (
    tenant TEXT NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL DEFAULT 1 CHECK (epoch >= 1),
    frozen INTEGER NOT NULL DEFAULT 0 CHECK (frozen IN (0, 1))
) WITHOUT ROWID;

-- The immutable body: never updated.
CREATE TABLE tenure_job (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    organization TEXT NOT NULL CHECK (organization <> ''),
    project TEXT NOT NULL CHECK (project <> ''),
    idempotency_key TEXT NOT NULL CHECK (idempotency_key <> ''),
    subject TEXT,
    kind TEXT NOT NULL CHECK (kind <> ''),
    kind_version INTEGER NOT NULL CHECK (kind_version >= 1),
    queue TEXT NOT NULL CHECK (queue <> ''),
    priority INTEGER NOT NULL,
    payload TEXT NOT NULL,
    attempts_max INTEGER NOT NULL CHECK (attempts_max >= 1),
    backoff_us INTEGER NOT NULL CHECK (backoff_us > 0),
    lease_us INTEGER NOT NULL CHECK (lease_us > 0),
    scheduled_at INTEGER NOT NULL CHECK (scheduled_at < 253370764800000000),
    created_at INTEGER NOT NULL,
    on_reconciled TEXT CHECK (on_reconciled IN ('complete', 'resume')),
    on_declined TEXT NOT NULL CHECK (on_declined IN ('failed', 'dead_letter')),
    options TEXT,
    payload_digest TEXT NOT NULL,
    operation_digest TEXT NOT NULL,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_job_scope ON tenure_job (tenant, organization, project, job_id);

-- The idempotency ledger: it may outlive the job.
CREATE TABLE tenure_job_key (
    tenant TEXT NOT NULL,
    project TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    organization TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload_digest TEXT NOT NULL,
    PRIMARY KEY (tenant, project, idempotency_key)
) WITHOUT ROWID;

-- Queues that somebody has said something about; all others are plain.
CREATE TABLE tenure_queue (
    name TEXT NOT NULL PRIMARY KEY CHECK (name <> ''),
    fair INTEGER NOT NULL CHECK (fair IN (0, 1)),
    -- The lane from which the single claim took last; workers remember their own.
    turn TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE tenure_queue_weight (
    tenant TEXT NOT NULL CHECK (tenant <> ''),
    queue TEXT NOT NULL CHECK (queue <> ''),
    weight INTEGER NOT NULL CHECK (weight BETWEEN 1 AND 100),
    PRIMARY KEY (tenant, queue)
) WITHOUT ROWID;

-- Queued and due. `lane` is the tenant on a fair queue and empty on a plain one, decided by the insert.
CREATE TABLE tenure_ready (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    organization TEXT NOT NULL,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_ready_order ON tenure_ready (queue, lane, priority DESC, run_at, job_id);
-- Nearly always empty: jobs whose worker died are run one by one, and must be found without walking the queue.
CREATE INDEX tenure_ready_lost ON tenure_ready (queue, lane, priority DESC, run_at, job_id)
    WHERE error_code = 'WORKER_LOST';

-- Queued and not yet due: a future row must cost a claim nothing.
CREATE TABLE tenure_deferred (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    organization TEXT NOT NULL,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_deferred_due ON tenure_deferred (run_at, job_id);

-- In flight: one row per claimed or running job.
CREATE TABLE tenure_lease (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('claimed', 'running')),
    worker_id TEXT NOT NULL CHECK (worker_id <> ''),
    attempt_id TEXT NOT NULL,
    claim_id TEXT,
    expires_at INTEGER NOT NULL,
    lease_us INTEGER NOT NULL CHECK (lease_us > 0),
    claimed_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 1),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    cancel_reason TEXT,
    progress TEXT,
    error_code TEXT,
    error_message TEXT,
    command_id TEXT,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;
CREATE INDEX tenure_lease_claim ON tenure_lease (claim_id, tenant) WHERE claim_id IS NOT NULL;

-- Not offered to workers: queued but parked, indeterminate, timed out.
CREATE TABLE tenure_resting (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'indeterminate', 'timed_out')),
    parked TEXT,
    organization TEXT NOT NULL,
    kind TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    cancel_reason TEXT,
    error_code TEXT,
    error_message TEXT,
    finished_at INTEGER,
    PRIMARY KEY (job_id, tenant),
    CHECK (status <> 'queued' OR (cancel_requested_at IS NULL AND finished_at IS NULL AND parked IS NOT NULL)),
    CHECK (status = 'queued' OR finished_at IS NOT NULL)
) WITHOUT ROWID;
CREATE INDEX tenure_resting_status ON tenure_resting (status, kind);

-- Terminal facts: inserted, and deleted by a retry or a resume; never updated.
CREATE TABLE tenure_outcome (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled', 'dead_letter', 'halt_unsafe')),
    run_at INTEGER NOT NULL,
    generation INTEGER NOT NULL CHECK (generation >= 0),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    attempts_max INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    result TEXT,
    cancel_requested_at INTEGER,
    cancel_reason TEXT,
    error_code TEXT,
    error_message TEXT,
    finished_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, tenant),
    CHECK (status <> 'completed' OR error_code IS NULL),
    CHECK (status = 'completed' OR result IS NULL),
    CHECK (status IN ('completed', 'cancelled') OR error_code IS NOT NULL)
) WITHOUT ROWID;

-- The trail: append-only.
CREATE TABLE tenure_event (
    event_id INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    status TEXT,
    actor TEXT,
    data TEXT,
    command_id TEXT
);
CREATE INDEX tenure_event_trail ON tenure_event (job_id, event_id);

-- Outside acts; the bare dispatch mark is the row without a name.
CREATE TABLE tenure_effect (
    tenant TEXT NOT NULL,
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL
        CHECK (state IN ('pending', 'succeeded', 'failed_before_dispatch', 'rejected', 'unknown', 'closed')),
    operation_key TEXT NOT NULL CHECK (operation_key <> ''),
    request_digest TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    begun_at INTEGER NOT NULL,
    deadline_at INTEGER NOT NULL,
    terms TEXT,
    receipt TEXT,
    reason TEXT,
    settled_at INTEGER,
    settled_by TEXT,
    ordinal INTEGER NOT NULL,
    lookups INTEGER NOT NULL,
    asked_at INTEGER,
    PRIMARY KEY (tenant, job_id, name),
    CHECK ((state IN ('pending', 'unknown')) = (settled_at IS NULL)),
    CHECK (state <> 'closed' OR name = '')
) WITHOUT ROWID;
CREATE UNIQUE INDEX tenure_effect_key ON tenure_effect (tenant, operation_key);
CREATE INDEX tenure_effect_job ON tenure_effect (job_id);
CREATE INDEX tenure_effect_open ON tenure_effect (tenant, job_id) WHERE state IN ('pending', 'unknown');

-- Every intent ever committed, so that a late receipt can be matched to it.
CREATE TABLE tenure_intent (
    tenant TEXT NOT NULL,
    operation_key TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    -- Behind the key: SQLite 3.40 reports a healthy row as damaged where a column stands among those of the key.
    job_id TEXT NOT NULL,
    PRIMARY KEY (operation_key, attempt_id, tenant, at)
) WITHOUT ROWID;

CREATE TABLE tenure_evidence (
    evidence_id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    job_id TEXT NOT NULL,
    operation_key TEXT NOT NULL,
    attempt_id TEXT,
    kind TEXT NOT NULL CHECK (kind IN ('accepted', 'declined', 'absent', 'not_sent')),
    receipt TEXT,
    reason TEXT,
    at INTEGER NOT NULL,
    contradicts INTEGER NOT NULL CHECK (contradicts IN (0, 1)),
    used INTEGER NOT NULL CHECK (used IN (0, 1))
) WITHOUT ROWID;
CREATE INDEX tenure_evidence_job ON tenure_evidence (job_id);

-- Jobs that wait for a person, in any status.
CREATE TABLE tenure_escalation (
    job_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    escalated_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (job_id, tenant)
) WITHOUT ROWID;

-- One row for a claim that took something, so that a claim whose reply was lost can be asked again.
CREATE TABLE tenure_claim (
    claim_id TEXT NOT NULL PRIMARY KEY,
    worker_id TEXT NOT NULL,
    scope TEXT NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tenure_claim_age ON tenure_claim (at);

-- Which kinds live workers know; rows whose kind nobody announces are parked.
CREATE TABLE tenure_announcement (
    worker_id TEXT NOT NULL PRIMARY KEY,
    kinds TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE VIEW tenure_place AS
SELECT 'ready' AS place, job_id, tenant, 'queued' AS status, generation, attempt, attempts_max, epoch, run_at,
    NULL AS worker_id, NULL AS attempt_id, NULL AS expires_at, NULL AS lease_us, NULL AS claimed_at,
    NULL AS cancel_requested_at, NULL AS cancel_reason, NULL AS progress, NULL AS parked, NULL AS result,
    error_code, error_message, NULL AS finished_at, NULL AS command_id
FROM tenure_ready
UNION ALL
SELECT 'deferred', job_id, tenant, 'queued', generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, error_code, error_message, NULL, NULL
FROM tenure_deferred
UNION ALL
SELECT 'lease', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    worker_id, attempt_id, expires_at, lease_us, claimed_at, cancel_requested_at, cancel_reason, progress,
    NULL, NULL, error_code, error_message, NULL, command_id
FROM tenure_lease
UNION ALL
SELECT 'resting', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, parked, NULL,
    error_code, error_message, finished_at, NULL
FROM tenure_resting
UNION ALL
SELECT 'outcome', job_id, tenant, status, generation, attempt, attempts_max, epoch, run_at,
    NULL, NULL, NULL, NULL, NULL, cancel_requested_at, cancel_reason, NULL, NULL, result,
    error_code, error_message, finished_at, NULL
FROM tenure_outcome;
